"""The table of faults names alerts and tests that exist."""

import re
from pathlib import Path

import pytest

from tests.deploy.pieces import alerts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operate/faults.md").read_text()
_, *ROWS = (
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGE.partition("<!-- faults -->")[2].partition("<!-- /faults -->")[0].splitlines()
    if line.startswith("| ")
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_fault_has_a_test(row: list[str]) -> None:
    """The last cell names a file, and usually a test in it."""
    assert len(row) == 6
    path, _, name = row[-1].strip("`").partition("::")
    assert re.search(rf"^(async )?def {name or 'test_'}", (ROOT / path).read_text(), re.MULTILINE), row[-1]


def test_every_named_alert_exists() -> None:
    """And every alert about a fault is in the table."""
    named = set(re.findall(r"Fetchwise[A-Z]\w+", PAGE))
    assert named <= alerts().keys()
    assert len(ROWS) >= 20
