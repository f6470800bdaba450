"""Labels by hand: only what a refit needs is asked for, and labels are joined by id and k."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.certify.plan import TEST_FROM, train_share
from app.core.policy import Policy
from app.errors import DataError
from app.offline.builder import load
from app.offline.evaluate.study import make_study
from app.offline.labelling import apply_labels, unlabelled_answers, write_unlabelled
from app.offline.refit.refit import refit
from app.offline.refit.splits import position
from tests.offline.world import OPTIONS, World


def test_labels_overrule_those_of_the_table(tmp_path: Path) -> None:
    """A line changes the labels that it names, and the last line wins."""
    table, _ = World().draw(20, seed=0)
    file = tmp_path / "labels.jsonl"
    file.write_text(
        '{"id": "3", "ks": [1, 5], "correct": true}\n\n{"id": "3", "ks": [5], "correct": false}\n'
        '{"id": "4", "ks": [0], "correct": null}\n'
    )
    found = apply_labels(table, file)
    assert not found.correct[5][3]
    assert found.correct[1][3]
    same = found.correct[5] == table.correct[5]
    assert same[:3].all()
    assert same[4:].all()
    assert (found.correct[0] == table.correct[0]).all()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "nobody", "ks": [0], "correct": true}', "'nobody'"),
        ('{"id": "3", "ks": [7], "correct": true}', "k = 7"),
        ('{"id": "3", "ks": [0], "correct": "maybe"}', "true or false"),
        ('{"id": "3", "ks": [0]', "complete JSON"),
        ('{"id": "3"}', "write all three"),
        ('{"id": "3", "ks": 0, "correct": true}', "write all three"),
        ('{"id": "3", "ks": [true], "correct": true}', "write all three"),
        ('{"id": "3", "ks": [[0]], "correct": true}', "write all three"),
        ('{"id": ["3"], "ks": [0], "correct": true}', "no row of the table"),
    ],
)
def test_a_bad_label_names_its_line(tmp_path: Path, line: str, words: str) -> None:
    """An unknown id, k or label, or a torn line, is refused with file and line."""
    table, _ = World().draw(20, seed=0)
    file = tmp_path / "labels.jsonl"
    file.write_text('{"id": "1", "ks": [0], "correct": true}\n' + line + "\n")
    with pytest.raises(DataError, match=r"labels\.jsonl:2: ") as caught:
        apply_labels(table, file)
    assert words in str(caught.value)


def test_a_missing_file_of_labels_is_named(tmp_path: Path) -> None:
    """A file that is not there is a DataError, not a traceback."""
    table, _ = World().draw(20, seed=0)
    with pytest.raises(DataError, match=r"none\.jsonl"):
        apply_labels(table, tmp_path / "none.jsonl")


# A table without labels: closed-book answers of even questions equal the read ones, up to spelling.
N = 300


def true_label(number: int, answer: str) -> bool:
    return number % 3 > 0 if answer.lower().startswith("the city") else number % 5 == 0


def written(path: Path) -> Path:
    def row(number: int) -> dict[str, Any]:
        signals = {"seq_logprob": -1.0 - (number * 7 % 100) / 100}
        texts = {0: "The city!" if number % 2 == 0 else "another", 1: "the city", 5: "City"}
        cells = {
            f"k{k}": {"answer": text, "correct": None, "signals": signals, "prompt_tokens": 10 + k}
            for k, text in texts.items()
        }
        return {"id": str(number), "group": f"g{number}", "question": f"Which city is number {number}?"} | cells

    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(N)))
    return path


def places() -> tuple[np.ndarray, np.ndarray]:
    place = np.array([position(f"g{number}") for number in range(N)])
    return place, (place >= train_share(N)) & (place < TEST_FROM)


def test_only_answers_that_matter_need_a_label(tmp_path: Path) -> None:
    """Equal answers share a line, and in validation a question needs none if all its answers are equal."""
    table, out = written(tmp_path / "table.jsonl"), tmp_path / "labels.jsonl"
    needed, spared = write_unlabelled(table, out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    _, validation = places()
    even = np.arange(N) % 2 == 0
    assert needed == len(lines) == int(2 * (~even).sum() + (even & ~validation).sum())
    assert spared == 3 * int((even & validation).sum())
    assert spared > 100
    assert all(line["correct"] is None for line in lines)
    by_id: dict[str, list[list[int]]] = {}
    for line in lines:
        by_id.setdefault(line["id"], []).append(line["ks"])
    assert all(ks in ([[0], [1, 5]], [[0, 1, 5]]) for ks in by_id.values())


def test_a_refit_takes_the_labels_and_counts_them(tmp_path: Path) -> None:
    """Without labels it says what to do; with them it certifies accuracy, and says what abstention lacks."""
    table, out = written(tmp_path / "table.jsonl"), tmp_path / "labels.jsonl"
    options = replace(OPTIONS, policy=Policy.GRADED, epsilon=0.3)
    with pytest.raises(DataError, match=r"--label-later FILE"):
        refit(load(table, texts=False), options)
    with pytest.raises(DataError, match=r"rows of the table lack a label"):
        make_study(load(table), 100)
    write_unlabelled(table, out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    labelled = [line | {"correct": true_label(int(line["id"]), line["answer"])} for line in lines]
    # Half of the work, then the rest: what is labelled stays in the file.
    out.write_text("".join(json.dumps(line) + "\n" for line in (*labelled[:100], *lines[100:])))
    assert write_unlabelled(table, out)[0] == len(lines) - 100
    out.write_text("".join(json.dumps(line) + "\n" for line in labelled))
    assert write_unlabelled(table, out)[0] == 0
    joined = apply_labels(load(table, texts=False), out)
    assert not list(unlabelled_answers(joined))
    artifact, _ = refit(joined, options)
    certificate = artifact.policies["graded"].certificate
    _, validation = places()
    assert certificate is not None
    assert certificate.n == int(validation.sum())
    assert certificate.labels == int((validation & (np.arange(N) % 2 == 1)).sum())


def test_abstention_needs_every_label(tmp_path: Path) -> None:
    """The ladder may be certified on answers that differ; the error among answered may not."""
    table, out = written(tmp_path / "table.jsonl"), tmp_path / "labels.jsonl"
    write_unlabelled(table, out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    labelled = [line | {"correct": true_label(int(line["id"]), line["answer"])} for line in lines]
    out.write_text("".join(json.dumps(line) + "\n" for line in labelled))
    joined = apply_labels(load(table, texts=False), out)
    artifact, _ = refit(joined, replace(OPTIONS, epsilon=0.3, prices=(0.12,)))
    assert artifact.abstention.certificate is None
    assert "label these, too" in (artifact.abstention.uncertified_reason or "")
