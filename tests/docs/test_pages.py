"""The README and the pages of docs/: links lead somewhere, named files exist, the receipt is a real one."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from app.api.receipt import Receipt
from app.cli import app as command_line

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("[bcd]*/*.md"))]
# [text](target) and <img src="target">, outside of code.
_LINK = re.compile(r'\]\(([^)\s]+)\)|src="([^"]+)"')
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_every_relative_link_resolves(page: Path) -> None:
    """Each link within the project leads to a file, and to a heading where it names one."""
    for match in _LINK.finditer(prose(page)):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), f"{target} does not exist"
        assert not anchor or anchor in anchors(linked), f"{target}: no such heading"


def test_every_page_is_in_the_contents() -> None:
    """docs/index.md links to every page of docs/."""
    index = ROOT / "docs/index.md"
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", index.read_text())}
    assert linked >= {page for page in (ROOT / "docs").rglob("*.md") if page != index}


def test_readme_is_short() -> None:
    """The README fits on a few screens: the rest is in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_readme_receipt_has_every_field() -> None:
    """The README shows a whole receipt with the fields of the API, in their order."""
    (block,) = re.findall(r"^```json\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    shown = json.loads(block)
    served = Receipt.model_validate(shown).model_dump(mode="json")
    assert json.dumps(shown) == json.dumps(served)


@each_page
def test_every_named_path_exists(page: Path) -> None:
    """A path of the project in backquotes exists."""
    for path in re.findall(r"`((?:app|tests|docs|deploy|bench|calibrators/demo|demo)/[\w./*-]*)`", prose(page)):
        assert any(ROOT.glob(path.rstrip("/"))), f"{path} does not exist"


def test_typical_changes_name_at_most_four_files() -> None:
    """docs/contribute/changes.md has at least ten changes, each with at most four places to touch."""
    changes = (ROOT / "docs/contribute/changes.md").read_text().split("\n## ")[1:]
    assert len(changes) >= 10
    for change in changes:
        places = re.findall(r"^- ", change, re.MULTILINE)
        title = change.partition("\n")[0]
        assert len(places) <= 4, title
        assert places or "Configuration only" in change, title


def test_glossary_is_complete_and_sorted() -> None:
    """Every term that the other pages rely on is defined, in alphabetical order."""
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert terms == sorted(terms, key=str.casefold)
    wanted = {"abstain", "artifact", "break-even skip rate", "bypass", "calibrator", "certificate", "delta (δ)"}
    wanted |= {"epsilon (ε)", "evidence", "exploration", "fallback k", "group", "k", "ladder", "probe", "receipt"}
    wanted |= {"reference", "rung", "scope", "shadow run", "signals", "skip rate", "state", "step"}
    assert wanted <= set(terms)


def test_the_nouns_are_where_the_architecture_says() -> None:
    """Each class in the table of nouns is defined in the module next to it."""
    page = (ROOT / "docs/contribute/architecture.md").read_text()
    rows = re.findall(r"^\| (`.+) \| .+ \| `(app/.+\.py)` \|$", page, re.MULTILINE)
    assert rows
    for names, path in rows:
        module = (ROOT / path).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(class {name}\b|{name} = )", module, re.MULTILINE), f"{name} is not in {path}"


def test_the_tree_has_the_layers_of_the_contract() -> None:
    """The packages in the architecture's tree are those of import-linter, in the same order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [part.strip() for layer in contracts[0]["layers"] for part in layer.split("|")]
    section = (ROOT / "docs/contribute/architecture.md").read_text().partition("## The tree")[2]
    tree = re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]
    drawn = [name for line in tree.splitlines() for name in re.split(r" {3,}", line.strip())[0].split("  ")]
    assert drawn == layers


def commands(application: typer.Typer, path: str = "fetchwise") -> Iterator[str]:
    """Every command, as it is typed."""
    for command in application.registered_commands:
        assert command.callback is not None
        yield f"{path} {command.name or command.callback.__name__}"
    for group in application.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{path} {group.name or group.typer_instance.info.name}")


def test_every_command_is_documented() -> None:
    """Each command of the command line is explained on some page."""
    pages = "".join(page.read_text() for page in PAGES)
    listed = set(commands(command_line))
    assert len(listed) > 10
    assert {command for command in listed if command not in pages} == set()
