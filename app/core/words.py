"""Words of questions, answers and passages, folded so that spelling does not matter; for evidence, not for labels.

Case, accents, width and punctuation are folded, "1,385" is "1385", and scripts that write no spaces give pairs of
characters.
"""

import re
import unicodedata
from functools import lru_cache

# Words that say nothing about the subject of a text.
# fmt: off
STOP_WORDS = frozenset({
    "a", "an", "the", "of", "in", "on", "at", "to", "for", "from", "by", "with", "as", "and", "or", "is", "are", "was",
    "were", "be", "been", "do", "does", "did", "has", "have", "had", "it", "its", "this", "that", "these", "those",
    "there", "what", "which", "who", "whom", "whose", "when", "where", "why", "how", "many", "much", "s", "t",
})
# fmt: on

# Marks inside words of scripts such as Devanagari. `\w` does not match them, and without them words would break.
_MARKS = "".join(
    chr(c)
    for c in range(0x0900, 0x1A00)
    if unicodedata.category(chr(c))[0] == "M" and not unicodedata.combining(chr(c))
)
_WORD = re.compile(rf"\d+(?:\.\d+)?|(?:[^\W_\d]|[{_MARKS}])+\d*")
_ASCII_WORD = re.compile(r"\d+(?:\.\d+)?|[a-z]+\d*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# Thai, Lao, Myanmar, Khmer, kana and Han ideographs.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]+"
)
# A full stop inside a number is no end.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


def words(text: str) -> list[str]:
    """The words of a text in order, folded."""
    if not text.isascii():
        # A few characters come apart into 18, letters of any script into four at most.
        apart = unicodedata.normalize("NFKD", text)[: 4 * len(text) + 64]
        text = "".join(c for c in apart if not unicodedata.combining(c))
    folded = _THOUSANDS.sub("", text.casefold())
    if folded.isascii():
        return _ASCII_WORD.findall(folded)
    found: list[str] = []
    for word in _WORD.findall(folded):
        if word.isascii() or not _UNSPACED.search(word):
            found.append(word)
        else:
            found += _pairs(word)
    return found


def _pairs(word: str) -> list[str]:
    """Runs of an unspaced script as overlapping pairs of characters, the rest as words."""
    found, end = [], 0
    for run in _UNSPACED.finditer(word):
        found += [word[end : run.start()]] if run.start() > end else []
        text, end = run[0], run.end()
        found += [text[place : place + 2] for place in range(max(1, len(text) - 1))]
    return found + ([word[end:]] if end < len(word) else [])


def content_words(text: str) -> frozenset[str]:
    """The words of a text that say something about its subject."""
    return frozenset(words(text)) - STOP_WORDS


@lru_cache(maxsize=4096)
def passage_words(title: str, text: str) -> frozenset[str]:
    """Every word of a passage; the same passages are found again and again."""
    return frozenset(words(f"{title}\n{text}"))


@lru_cache(maxsize=4096)
def sentence_words(text: str) -> tuple[frozenset[str], ...]:
    """The words of each sentence of a text."""
    return tuple(frozenset(words(sentence)) for sentence in _SENTENCE_END.split(text))


def scripts(text: str) -> frozenset[str]:
    """The writing systems of a text by the first word of a letter's Unicode name, such as LATIN or CJK."""
    if text.isascii():
        return frozenset(("LATIN",)) if any(map(str.isalpha, text)) else frozenset()
    return frozenset(unicodedata.name(c, "UNKNOWN").split()[0].split("-")[0] for c in text if c.isalpha())
