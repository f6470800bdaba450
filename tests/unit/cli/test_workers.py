"""Several workers: refused if a part runs inside the process."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.cli.serve import check_workers, worker
from app.errors import ConfigurationError
from app.settings import Settings

REMOTE = {"reader": "http://reader:8000", "reader_model": "m", "vectors": "https://vectors:6333"}


def settings(**changes: Any) -> Settings:
    return Settings.of(**(REMOTE | changes))


def test_remote_parts_can_be_shared() -> None:
    """Any number of workers is allowed with remote servers; the embedder may be local."""
    check_workers(settings(workers=8))
    check_workers(settings(workers=8, reader="unix:/run/reader.sock"))


def test_one_worker_may_hold_its_parts() -> None:
    """One worker is allowed with embedded parts."""
    check_workers(Settings.of())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reader": "embedded"}, "FETCHWISE_READER=embedded"),
        ({"reader": "vllm"}, "FETCHWISE_READER=vllm"),
        ({"vectors": "embedded"}, "FETCHWISE_VECTORS=embedded"),
        ({"reader": "embedded", "vectors": "embedded"}, "FETCHWISE_READER=embedded and FETCHWISE_VECTORS=embedded"),
    ],
    ids=str,
)
def test_a_part_inside_one_process_is_named(changes: dict[str, str], named: str) -> None:
    """The error names the setting to change."""
    with pytest.raises(ConfigurationError, match="FETCHWISE_WORKERS") as refusal:
        check_workers(settings(workers=2, **changes))
    assert named in str(refusal.value)


def test_what_a_worker_is_made_of_travels_to_it(tmp_path: Path) -> None:
    """Settings can be pickled for workers, including secrets."""
    chosen = settings(workers=2, reader_api_key="s3cret", port=0)
    arrived = pickle.loads(pickle.dumps(partial(worker, chosen, tmp_path)))
    assert (arrived.func, arrived.args) == (worker, (chosen, tmp_path))
    assert arrived.args[0].reader.api_key.get_secret_value() == "s3cret"
