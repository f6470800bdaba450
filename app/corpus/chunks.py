"""Splits text into passages of about a hundred words at sentence boundaries. Pure; keeps every word.

Words are separated by white space.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

TARGET_WORDS = 100
# Only a longer sentence is split; a ready-made passage up to this length is kept as it is.
MAX_SENTENCE_WORDS = 150
# A shorter passage has too little content to be found; merge it with its neighbour.
MIN_WORDS = 25
# A short start, the longest sentence and a short tail together: nearly always within MiniLM's 256 tokens.
MAX_WORDS = MAX_SENTENCE_WORDS + 2 * (MIN_WORDS - 1)

_PARAGRAPH = re.compile(r"\n\s*\n")
# The end of a sentence: a stop, perhaps closing quotes or brackets, white space, and what a sentence starts with.
_SENTENCE_END = re.compile(r"""(?<=[.!?…])["'”’»)\]]*\s+(?=["'“‘«(\[]*[^\W_a-z])""")
_ABBREVIATION = re.compile(
    r"""(?:^|[\s("'“‘\[])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Capt|Sgt|Lt|St|Mt|Jr|Sr|Inc|Ltd|Co|Corp|No|Nos|Vol|"""
    r"""Fig|Eq|vs|cf|ca|c|al|approx|e\.g|i\.e|(?:[A-Z]\.)+[A-Z])\.$"""
)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of Markdown with its headings, outermost first."""

    headings: tuple[str, ...]
    text: str


def chunk(text: str) -> list[str]:
    """Split text into passages and collapse white space; no passages if the text has no words.

    No passage exceeds MAX_WORDS, and none is shorter than MIN_WORDS unless the whole text is.
    """
    chunks: list[list[str]] = []
    for piece in _pieces(text):
        if chunks and (len(chunks[-1]) < MIN_WORDS or len(chunks[-1]) + len(piece) <= TARGET_WORDS):
            chunks[-1] += piece
        else:
            chunks.append(piece)
    if len(chunks) > 1 and len(chunks[-1]) < MIN_WORDS:
        tail = chunks.pop()
        chunks[-1] += tail
    return [" ".join(words) for words in chunks]


def word_count(text: str) -> int:
    """How many words a text has."""
    return len(text.split())


def _pieces(text: str) -> Iterator[list[str]]:
    """The words of each sentence; a sentence that is too long is split evenly."""
    for paragraph in _PARAGRAPH.split(text):
        for sentence in _sentences(paragraph):
            words = sentence.split()
            if len(words) <= MAX_SENTENCE_WORDS:
                if words:
                    yield words
                continue
            parts = -(-len(words) // TARGET_WORDS)
            cuts = [len(words) * i // parts for i in range(parts + 1)]
            yield from (words[start:end] for start, end in pairwise(cuts))


def _sentences(paragraph: str) -> Iterator[str]:
    start = 0
    for end in _SENTENCE_END.finditer(paragraph):
        # Enough characters for the longest abbreviation and the one before it.
        if _ABBREVIATION.search(paragraph, max(0, end.start() - 12), end.start()):
            continue
        yield paragraph[start : end.end()]
        start = end.end()
    yield paragraph[start:]


_HEADING = re.compile(r" {0,3}(#{1,6})(?:\s|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})\s*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)


def markdown_sections(text: str) -> Iterator[Section]:
    """Split Markdown at its headings; skip front matter and empty sections, keep code blocks whole."""
    headings: dict[int, str] = {}
    lines: list[str] = []
    fence = ""
    for line in _FRONT_MATTER.sub("", text.replace("\r\n", "\n")).split("\n"):
        mark = _FENCE.match(line)
        if fence or mark:
            if mark and not fence:
                fence = mark[1]
            elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            lines.append(line)
            continue
        level, heading = 0, ""
        if found := _HEADING.match(line):
            level, heading = len(found[1]), _without_closing(line[found.end() :].strip())
        elif (found := _UNDERLINE.match(line)) and lines and _can_be_heading(lines):
            level, heading = (1 if found[1][0] == "=" else 2), lines.pop().strip()
        if not level:
            lines.append(line)
            continue
        yield from _section(headings, lines)
        lines = []
        headings = {above: name for above, name in headings.items() if above < level}
        if heading:
            headings[level] = heading
    yield from _section(headings, lines)


def _without_closing(heading: str) -> str:
    """Drop the # characters that may close a heading, but keep the one of C#."""
    bare = heading.rstrip("#")
    return bare.rstrip() if not bare or bare[-1].isspace() else heading


def _can_be_heading(lines: list[str]) -> bool:
    """Whether a line of dashes makes the previous line a heading: a line of prose, not a list, table or quote."""
    last, before = lines[-1], lines[-2] if len(lines) > 1 else ""
    return bool(last.strip()) and not before.strip() and last.lstrip()[0] not in "|>-*+`~"


def _section(headings: dict[int, str], lines: list[str]) -> Iterator[Section]:
    text = "\n".join(lines)
    if text.strip():
        yield Section(tuple(headings[level] for level in sorted(headings)), text)
