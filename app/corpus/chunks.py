"""Cuts text into passages of about a hundred words along its sentences; pure, and loses no word.

A word is what white space separates.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

TARGET_WORDS = 100
# Only a sentence longer than this is cut, and a ready-made passage up to this long is left as it is.
LONGEST_SENTENCE = 150
# A shorter passage says too little to be found by; it joins its neighbour.
SHORTEST_WORDS = 25
# A short beginning, a longest sentence and a short tail in one: still within the 256 tokens that MiniLM reads,
# but for the rarest texts.
LONGEST_WORDS = LONGEST_SENTENCE + 2 * (SHORTEST_WORDS - 1)

_PARAGRAPH = re.compile(r"\n\s*\n")
# The end of a sentence: a stop, perhaps closing quotes or brackets, white space, and what a sentence starts with.
_SENTENCE_END = re.compile(r"""(?<=[.!?…])["'”’»)\]]*\s+(?=["'“‘«(\[]*[^\W_a-z])""")
_ABBREVIATION = re.compile(
    r"""(?:^|[\s("'“‘\[])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Capt|Sgt|Lt|St|Mt|Jr|Sr|Inc|Ltd|Co|Corp|No|Nos|Vol|"""
    r"""Fig|Eq|vs|cf|ca|c|al|approx|e\.g|i\.e|(?:[A-Z]\.)+[A-Z])\.$"""
)


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of Markdown under its headings, outermost first."""

    headings: tuple[str, ...]
    text: str


def chunk(text: str) -> list[str]:
    """Cut text into passages, its white space collapsed; none if there is no word in it.

    No passage exceeds LONGEST_WORDS, and none is shorter than SHORTEST_WORDS unless the whole text is.
    """
    chunks: list[list[str]] = []
    for piece in _pieces(text):
        if chunks and (len(chunks[-1]) < SHORTEST_WORDS or len(chunks[-1]) + len(piece) <= TARGET_WORDS):
            chunks[-1] += piece
        else:
            chunks.append(piece)
    if len(chunks) > 1 and len(chunks[-1]) < SHORTEST_WORDS:
        tail = chunks.pop()
        chunks[-1] += tail
    return [" ".join(words) for words in chunks]


def word_count(text: str) -> int:
    """How many words a text has."""
    return len(text.split())


def _pieces(text: str) -> Iterator[list[str]]:
    """The words of each sentence; a sentence that is too long comes in even parts."""
    for paragraph in _PARAGRAPH.split(text):
        for sentence in _sentences(paragraph):
            words = sentence.split()
            if len(words) <= LONGEST_SENTENCE:
                if words:
                    yield words
                continue
            parts = -(-len(words) // TARGET_WORDS)
            cuts = [len(words) * i // parts for i in range(parts + 1)]
            yield from (words[start:end] for start, end in pairwise(cuts))


def _sentences(paragraph: str) -> Iterator[str]:
    start = 0
    for end in _SENTENCE_END.finditer(paragraph):
        # The last characters hold the longest abbreviation and what stands before it.
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
    """Cut Markdown at its headings, leaving front matter out and code blocks whole; empty sections are left out."""
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
    """Drop the row of # that may close a heading, but not the one of C#."""
    bare = heading.rstrip("#")
    return bare.rstrip() if not bare or bare[-1].isspace() else heading


def _can_be_heading(lines: list[str]) -> bool:
    """Whether a line of dashes makes the last line a heading: one line of prose, not a list, a table or a quote."""
    last, before = lines[-1], lines[-2] if len(lines) > 1 else ""
    return bool(last.strip()) and not before.strip() and last.lstrip()[0] not in "|>-*+`~"


def _section(headings: dict[int, str], lines: list[str]) -> Iterator[Section]:
    text = "\n".join(lines)
    if text.strip():
        yield Section(tuple(headings[level] for level in sorted(headings)), text)
