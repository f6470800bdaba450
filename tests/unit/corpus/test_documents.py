"""Reading documents of every kind, and reporting why something was skipped."""

import gzip
import io
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pypdf
import pytest
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from app.corpus.documents import Document, Skipped, find, read
from app.corpus.formats import parse
from app.errors import DataError


def rows(path: Path, *lines: Any) -> Path:
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def pdf(*pages: str, title: str = "", password: str | None = None, algorithm: str = "RC4-128") -> bytes:
    writer = pypdf.PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for text in pages:
        page = writer.add_blank_page(300, 300)
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(stream)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
    if title:
        writer.add_metadata({"/Title": title})
    if password is not None:
        writer.encrypt(password, algorithm=algorithm)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def reasons(path: Path) -> list[tuple[int | None, str]]:
    return [(item.line, item.reason) for item in read(path) if isinstance(item, Skipped)]


def only(path: Path) -> Document:
    (item,) = read(path)
    assert isinstance(item, Document)
    return item


def test_jsonl_rows(tmp_path: Path) -> None:
    """A row's title and text are read, its id becomes source_id, and its other scalars become the payload."""
    path = rows(
        tmp_path / "a.jsonl",
        {"id": 7, "title": "Moon", "text": "Rock.", "lang": "en", "year": 1969, "ok": True, "at": 1.5, "big": 2**63},
        {"text": "Only text.", "tags": ["a"], "more": {"b": 1}, "none": None, "title": None},
    )
    first, second = read(path)
    assert isinstance(first, Document)
    assert (first.title, first.text, first.is_row) == ("Moon", "Rock.", True)
    assert first.payload == {
        "source_id": "7",
        "lang": "en",
        "year": 1969,
        "ok": True,
        "at": "1.5",
        "big": "9223372036854775808",
    }
    assert isinstance(second, Document)
    assert (second.title, second.text, second.payload) == ("", "Only text.", {})


def test_every_kind_of_bad_row(tmp_path: Path) -> None:
    """Each unusable row is reported with its line and reason, and the other rows are read."""
    path = rows(
        tmp_path / "a.jsonl",
        b"\xef\xbb\xbf" + b'{"text": "good"}',
        b'{"text": "torn',
        b"",
        b'{"text": "\xff"}',
        [1],
        {"title": "no text"},
        {"text": "  "},
        {"text": 5},
        {"text": "x", "title": ["y"]},
        {"text": "also good"},
    )
    assert [item.text for item in read(path) if isinstance(item, Document)] == ["good", "also good"]
    found = reasons(path)
    assert [line for line, _ in found] == [2, 4, 5, 6, 7, 8, 9]
    for (_, reason), expected in zip(
        found, ["not JSON", "not UTF-8", "not a JSON object", "no text", "no text", "no text", "title"], strict=True
    ):
        assert expected in reason


def test_positions_reach_the_size(tmp_path: Path) -> None:
    """Positions grow with every row up to the size of the file, compressed or not."""
    path = rows(tmp_path / "a.jsonl", *({"text": f"row {i} " * 50} for i in range(100)))
    positions = [item.position for item in read(path)]
    assert positions == sorted(set(positions))
    assert positions[-1] == path.stat().st_size
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [item.position for item in read(packed)][-1] <= packed.stat().st_size
    assert len(list(read(packed))) == 100


def test_damaged_gzip_yields_the_rows_before_the_damage(tmp_path: Path) -> None:
    """A truncated archive yields its complete rows and reports where it breaks off."""
    whole = gzip.compress(b"".join(json.dumps({"text": f"row {i * 7919}"}).encode() + b"\n" for i in range(5000)))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    items = list(read(path))
    assert isinstance(items[0], Document)
    assert isinstance(items[-1], Skipped)
    assert items[-1].line == len(items)
    assert "damaged gzip" in items[-1].reason
    path.write_bytes(b"this is not gzip")
    assert "damaged gzip" in reasons(path)[0][1]


def test_text(tmp_path: Path) -> None:
    """A text file is one document with the name of the file."""
    path = tmp_path / "Far side.TXT"
    path.write_bytes(b"\xef\xbb\xbfDark \xe2\x80\x94 not really.")
    document = only(path)
    assert (document.title, document.text, document.payload) == (
        "Far side",
        "Dark — not really.",
        {"source": "Far side.TXT"},
    )


def test_markdown(tmp_path: Path) -> None:
    """Each Markdown section is a document under its headings; text before the first heading gets the file's name."""
    path = tmp_path / "notes.md"
    path.write_text("intro\n\n# Moon\n\nrock\n\n## Far side\n\ndark\n")
    documents = [item for item in read(path) if isinstance(item, Document)]
    assert [(item.title, item.text.strip()) for item in documents] == [
        ("notes", "intro"),
        ("Moon", "rock"),
        ("Moon > Far side", "dark"),
    ]


@pytest.mark.parametrize("suffix", [".html", ".htm"])
def test_html(tmp_path: Path, suffix: str) -> None:
    """Markup, scripts and styles are removed; blocks stay separate and inline tags do not break words."""
    path = tmp_path / f"a{suffix}"
    path.write_text(
        "<?xml version='1.0'?><!doctype html><head><title>The\n Moon</title><style>p{}</style><script>var x</script>"
        "<body><h1>Moon</h1><p>W<b>or</b>d &amp; rock.<p>Far<br>side<ul><li>one<li>two</ul>"
    )
    document = only(path)
    assert document.title == "The Moon"
    assert document.text.split() == ["Moon", "Word", "&", "rock.", "Far", "side", "one", "two"]


def test_html_in_another_encoding(tmp_path: Path) -> None:
    """The encoding that a page declares is used."""
    path = tmp_path / "a.html"
    path.write_bytes("<meta charset='iso-8859-1'><p>Café</p>".encode("latin-1"))
    assert only(path).text.strip() == "Café"


def test_pdf(tmp_path: Path) -> None:
    """All pages of a PDF are one document, with its own title or else the file's name."""
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf("The Moon is", "made of rock.", title="Moon"))
    assert only(path).title == "Moon"
    assert only(path).text.split() == ["The", "Moon", "is", "made", "of", "rock."]
    path.write_bytes(pdf("Rock."))
    assert only(path).title == "a"
    path.write_bytes(pdf("Rock.", password=""))
    assert only(path).text == "Rock."


SKIPPED = {
    "a.xyz": (b"data", "unknown type .xyz"),
    "README": (b"data", "without a suffix"),
    "a.tar.gz": (b"data", "unknown type"),
    "empty.txt": (b" \n", "empty"),
    "empty.md": (b"", "empty"),
    "headings.md": (b"# One\n## Two\n", "empty"),
    "empty.jsonl": (b"\n\n", "empty"),
    "empty.jsonl.gz": (gzip.compress(b""), "empty"),
    "empty.html": (b"<title>only a title</title>", "empty"),
    "broken.html": (b"text <![ <![", "not readable HTML"),
    "binary.txt": (b"\xff\xfe\x00", "not UTF-8"),
    "binary.md": (b"\x80abc", "not UTF-8"),
    "broken.pdf": (b"%PDF-1.4 nothing more", "not a readable PDF"),
    "scan.pdf": (pdf(""), "perhaps a scan"),
    "locked.pdf": (pdf("secret", password="x"), "encrypted"),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_every_kind_of_skipped_file(tmp_path: Path, name: str) -> None:
    """An unusable file is reported with the reason, and nothing is raised."""
    content, reason = SKIPPED[name]
    path = tmp_path / name
    path.write_bytes(content)
    (item,) = read(path)
    assert isinstance(item, Skipped)
    assert (item.path, item.line) == (path, None)
    assert reason in item.reason


def test_unsupported_encryption_is_reported_as_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PDF with an unsupported cipher is reported as encrypted, not as broken."""
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf("secret", password="x"))

    def lacking(*_: object) -> None:
        raise RuntimeError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(pypdf.PdfReader, "decrypt", lacking)
    assert "encrypted" in reasons(path)[0][1]


@pytest.mark.parametrize(("name", "package"), [("a.html", "bs4"), ("a.pdf", "pypdf")])
def test_missing_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    """Without the extra, the reason contains the command that installs it."""
    (tmp_path / name).write_bytes(b"<p>x")
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'fetchwise[ingest]'" in reasons(tmp_path / name)[0][1]


def test_unreadable_file_is_skipped(tmp_path: Path) -> None:
    """A dangling link is skipped with the system's own message."""
    link = tmp_path / "gone.txt"
    link.symlink_to(tmp_path / "nowhere.txt")
    assert reasons(link) == [(None, "cannot be read: No such file or directory")]


def test_many_blocks_take_linear_time(tmp_path: Path) -> None:
    """Each element of a page is looked at once: twice the page, twice the steps."""
    path = tmp_path / "a.html"

    def steps(blocks: int) -> int:
        path.write_text("<p>a</p>" * blocks)
        count = 0

        def counted(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        try:
            assert only(path).text.split() == ["a"] * blocks
        finally:
            sys.setprofile(None)
        return count

    steps(1)
    assert steps(400) < 2.5 * steps(200)


def test_a_file_that_takes_too_long_is_skipped() -> None:
    """The reason names the limit; the next file has the whole time again."""
    page = b"<p>" + b"<b>word</b>" * 100_000
    with pytest.raises(DataError, match=r"longer than 0\.001 s, the limit for one file"):
        parse(".html", page, seconds=0.001)
    assert parse(".txt", b"word") == [("", "word")]


def test_other_threads_have_no_limit_of_time() -> None:
    """Only the main thread can be interrupted."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(parse, ".txt", b"word", seconds=1e-9).result() == [("", "word")]


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.pdf"])
def test_a_file_that_is_too_large_is_skipped(tmp_path: Path, name: str) -> None:
    """It is not read into memory whole, whatever it holds."""
    path = tmp_path / name
    path.touch()
    os.truncate(path, 10**12)
    assert reasons(path) == [(None, "larger than 100 MB, the limit for one file: split it")]


def test_a_pdf_whose_pages_share_a_large_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all pages contain together is bounded, too."""
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*["rock"] * 10))
    monkeypatch.setattr("app.corpus.formats.MAX_BYTES", 20_000)
    monkeypatch.setattr(pypdf.PageObject, "extract_text", lambda _: "word" * 2_000)
    assert "more than 100 MB of text" in reasons(path)[0][1]


@pytest.mark.parametrize(
    "content", [b"x" * 10_000_001, (b" " * 99_999 + b"\n") * 300], ids=["a long line", "many lines"]
)
def test_an_archive_that_unpacks_to_too_much(tmp_path: Path, content: bytes) -> None:
    """Neither a row nor the rows together are larger than what a small archive may contain."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(content))
    ((_, reason),) = reasons(path)
    assert re.search(r"10 MB, the limit|200 times its size, the limit", reason)
    assert reason.endswith("the rest of the file is skipped")


def test_a_row_with_long_fields_is_skipped(tmp_path: Path) -> None:
    """Each passage of the row would carry them."""
    path = rows(tmp_path / "a.jsonl", {"text": "x", "note": "y" * 10_000}, {"text": "good", "note": "y" * 9_000})
    assert reasons(path) == [(1, "its other fields are longer than 10,000 characters, the limit")]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.pdf"])
def test_only_regular_files_are_read(tmp_path: Path, name: str) -> None:
    """A pipe is skipped and not waited for, and a device is not read without end."""
    os.mkfifo(tmp_path / name)
    assert reasons(tmp_path / name) == [(None, "cannot be read: not a regular file")]
    (tmp_path / f"zero-{name}").symlink_to("/dev/zero")
    assert reasons(tmp_path / f"zero-{name}") == [(None, "cannot be read: not a regular file")]


def test_links_out_of_a_folder_are_skipped(tmp_path: Path) -> None:
    """Whoever fills a folder does not choose which other files are read; a file that was named is read."""
    folder = tmp_path / "folder"
    folder.mkdir()
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (folder / "a.txt").write_text("good")
    (folder / "inside.txt").symlink_to("a.txt")
    (folder / "outside.txt").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    first, second, third = find([folder])
    assert (first, second) == (folder / "a.txt", folder / "inside.txt")
    assert isinstance(third, Skipped)
    assert "outside of" in third.reason
    assert list(find([folder / "outside.txt"])) == [folder / "outside.txt"]


def test_directories_are_walked_in_order(tmp_path: Path) -> None:
    """Every file below a directory is found in a fixed order, except hidden files."""
    for name in ["b/2.txt", "b/10.txt", "a.txt", ".git/x.txt", "b/.hidden.txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [str(Path(str(path)).relative_to(tmp_path)) for path in find([tmp_path])] == ["a.txt", "b/10.txt", "b/2.txt"]
    assert list(find([tmp_path / ".git" / "x.txt"])) == [tmp_path / ".git" / "x.txt"]


def test_missing_path_is_an_error(tmp_path: Path) -> None:
    """A mistyped path is an error, not an empty run."""
    with pytest.raises(DataError, match="does not exist"):
        list(find([tmp_path / "nope"]))


def test_skipped_prints_like_a_compiler_message(tmp_path: Path) -> None:
    """A skipped item is one line with its location."""
    assert str(Skipped(Path("a.jsonl"), 3, "not JSON")) == "a.jsonl:3: not JSON"
    assert str(Skipped(Path("a.xyz"), None, "unknown type")) == "a.xyz: unknown type"
