"""Sentences of long answers: where they end, what supports them, and which citations stay."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.available import Passage
from app.core.corpus_stats import NO_STATS
from app.core.evidence import Asked
from app.core.sentences import LongAnswer, Sentence, cite_read, settled

ASKED = Asked("What is the capital of Jamaica?", NO_STATS)
PASSAGES = (
    Passage("a", "Cuba: geography", "The capital city of Cuba is Havana."),
    Passage("b", "Jamaica: geography", "The capital city of Jamaica is Kingston. It has 1,041 parks."),
)


def written(*pieces: str, passages: tuple[Passage, ...] = PASSAGES) -> LongAnswer:
    """An answer that arrived in these pieces; each is a token with the log-probability -1, -2, …."""
    answer, shown = LongAnswer(ASKED, passages), ""
    for number, piece in enumerate(pieces, start=1):
        shown += answer.add(piece, [(piece, -float(number))])
    shown += answer.finish()
    assert shown == answer.text
    return answer


def texts(text: str) -> list[str]:
    return [sentence.text for sentence in written(text).sentences]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is Mandeville. It is large!  Is it?", ["It is Mandeville.", "It is large!", "Is it?"]),
        ("It is Mandeville.[2] It is large. [1] [2] Yes.", ["It is Mandeville.[2]", "It is large. [1] [2]", "Yes."]),
        ("Dr. J. Smith of the U.S. Army saw it. He left.", ["Dr. J. Smith of the U.S. Army saw it.", "He left."]),
        (
            "It has approx. five (e.g. these) and 3.5 lakes.",
            ["It has approx. five (e.g. these) and 3.5 lakes."],
        ),
        ("1. Mandeville\n2. Montego Bay\n\nDone", ["1. Mandeville", "2. Montego Bay", "Done"]),
        ('He said "no." Then he left', ['He said "no."', "Then he left"]),
        ("首都は東京です。人口は多い。", ["首都は東京です。", "人口は多い。"]),
        ("Made in 1999. [7] Sold.", ["Made in 1999.", "Sold."]),
        ("[9]", []),
        ("", []),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    """Not at abbreviations, initials, numbers of a list or decimal points; citations belong to what they follow."""
    assert texts(text) == sentences


@given(st.text(alphabet="ab.U!?。 \n[]1,9\"')", max_size=60), st.integers(1, 7))
def test_pieces_do_not_matter(text: str, size: int) -> None:
    """No word is lost and the sentences are the same, whatever the text and however it arrives."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    answer = written(*pieces)
    assert [one.text for one in answer.sentences] == texts(text)
    assert "".join("".join(texts(text)).split()) == "".join(cite_read(text, 2).split())
    assert answer.text == answer.text.strip()


def test_support_is_by_the_words_that_the_question_does_not_have() -> None:
    """With its passage; case, the commas of numbers and citations do not count, and an echo needs no support."""
    text = "The capital of Jamaica is KINGSTON [1]. It has 1041 lakes. Fish swim. The capital of Jamaica."
    found = written(text).sentences
    assert [(one.support, one.passage) for one in found] == [(1.0, 2), (0.5, 2), (0.0, None), (None, None)]
    assert written("It is Kingston.", passages=()).sentences[0].support is None


def test_supported_sentence_is_cited() -> None:
    """Where the reader did not do it itself; what is behind it stays."""
    answer = written("It is", " King", "ston. It", " is Havana [2].\n\n", "Fish swim")
    assert answer.text == "It is Kingston. [2] It is Havana [2].\n\nFish swim"


def test_each_sentence_has_the_log_probability_of_its_own_tokens() -> None:
    """A token belongs where it ends, so a space before a word counts for the word."""
    assert [one.logprob for one in written("It", " is", ".", " No", ".").sentences] == [-2.0, -4.5]
    answer = LongAnswer(ASKED, ())
    answer.add("It is.", [("It", -1.0), (" is", math.nan), (".", -1.0)])
    # Bytes of one character, spelled in a way that is longer than the text.
    answer.add(" ½.", [(" ", -3.0), ("\\xc2", -3.0), ("\\xbd.", -6.0)])
    answer.finish()
    assert [one.logprob for one in answer.sentences] == [None, -4.5]


@pytest.mark.parametrize(
    ("support", "logprob", "mark"),
    [
        (1.0, -9.0, "supported"),
        (0.6, None, "supported"),
        (0.5, -0.1, "unsupported"),
        (0.5, -0.8, "uncertain"),
        (None, None, "unsupported"),
    ],
)
def test_marks(support: float | None, logprob: float | None, mark: str) -> None:
    """A passage counts for more than the reader's certainty."""
    assert Sentence("It is.", support, None, logprob).mark == mark


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Yes [1], no [2].", "Yes [1], no [2]."),
        ("Yes [3], no [0]. [12]", "Yes, no."),
        ("Yes [1, 3, 2] [7,2].", "Yes [1, 2] [2]."),
        ("In [1999] or [x] or [].", "In or [x] or []."),
        ("A part of [1", "A part of [1"),
    ],
)
def test_only_passages_that_were_read_are_cited(text: str, kept: str) -> None:
    """Numbers beyond the passages are removed, with the space before them."""
    assert cite_read(text, 2) == kept


@given(st.text(alphabet="ab .\n[]129,", max_size=40), st.integers(0, 40))
def test_settled_text_does_not_change(text: str, at: int) -> None:
    """What can be streamed is the beginning of the finished text."""
    assert cite_read(text.strip(), 2).startswith(cite_read(settled(text.lstrip()[:at]), 2))
