from pathlib import Path

import pytest

from app.errors import DataError
from app.offline.collect import apply_corrections
from tests.offline.world import World


def test_corrections_overrule_labels(tmp_path: Path) -> None:
    """A correction changes the one label that it names, and the last line wins."""
    table, _ = World().draw(20, seed=0)
    file = tmp_path / "corrections.jsonl"
    file.write_text('{"id": "3", "k": 5, "correct": true}\n\n{"id": "3", "k": 5, "correct": false}\n')
    corrected = apply_corrections(table, file)
    assert not corrected.correct[5][3]
    same = corrected.correct[5] == table.correct[5]
    assert same[:3].all()
    assert same[4:].all()
    assert (corrected.correct[0] == table.correct[0]).all()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "nobody", "k": 0, "correct": true}', "'nobody'"),
        ('{"id": "3", "k": 7, "correct": true}', "k = 7"),
        ('{"id": "3", "k": 0, "correct": "maybe"}', "true or false"),
        ('{"id": "3", "k": 0', "complete JSON"),
        ('{"id": "3"}', "write all three"),
    ],
)
def test_a_bad_correction_names_its_line(tmp_path: Path, line: str, words: str) -> None:
    """An unknown id, k or label, or a torn line, is refused with file and line."""
    table, _ = World().draw(20, seed=0)
    file = tmp_path / "corrections.jsonl"
    file.write_text('{"id": "1", "k": 0, "correct": true}\n' + line + "\n")
    with pytest.raises(DataError, match=r"corrections\.jsonl:2: ") as caught:
        apply_corrections(table, file)
    assert words in str(caught.value)


def test_a_missing_file_of_corrections_is_named(tmp_path: Path) -> None:
    """A file that is not there is a DataError, not a traceback."""
    table, _ = World().draw(20, seed=0)
    with pytest.raises(DataError, match=r"none\.jsonl"):
        apply_corrections(table, tmp_path / "none.jsonl")
