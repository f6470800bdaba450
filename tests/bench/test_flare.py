"""The FLARE experiment: when it searches again and for what, and its figures."""

import math
from typing import Any

from app.core.available import Passage, Usage
from app.core.corpus_stats import NO_STATS
from app.core.evidence import Asked
from app.core.sentences import LongAnswer
from app.upstream.parts import Parts
from bench.flare.run import Draft, Writer, summary
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever


def draft(*tokens: tuple[str, float]) -> Draft:
    """A sentence of these tokens and their probabilities."""
    said = "".join(text for text, _ in tokens)
    answer = LongAnswer(Asked("Who?", NO_STATS), ())
    return Draft(answer, said, [(text, math.log(p)) for text, p in tokens], Usage(), ended=False)


def test_search_is_for_the_sentence_without_its_unsure_words() -> None:
    """Where little would be left, for the whole sentence."""
    sure = draft(("It", 0.9), (" is", 0.5))
    unsure = draft(("The", 0.9), (" capital", 0.8), (" is", 0.9), (" Lyon", 0.1), (".", 0.9))
    assert (sure.unsure, unsure.unsure) == (False, True)
    assert unsure.query == "The capital is."
    assert draft(("It", 0.9), (" is", 0.9), (" Lyon", 0.1)).query == "It is Lyon"


async def test_sure_text_is_the_same_in_both_arms() -> None:
    """FLARE asks once for each sentence, continuing what is there, and searches only where the reader is unsure."""
    reader = FakeReader()
    parts = Parts(reader, FakeEmbedder(), FakeRetriever())
    passage = Passage("p", "France", "The capital of France is Paris.")
    writer = Writer(parts, {"question": "What is the capital of France?"}, [passage], "Paris")
    at_once, flare = await writer.at_once(), await writer.flare()
    assert (at_once.supported, flare.supported) == ([True], [True])
    assert at_once.text == flare.text == "The capital of France is Paris. [1]"
    assert (flare.searches, len(reader.chats)) == (0, 2)


def test_figures_compare_the_arms_by_question() -> None:
    """Questions for which an arm wrote nothing are left out."""

    def arm(supported: list[bool], *, tokens: int) -> dict[str, Any]:
        return {"supported": supported, "tokens": tokens, "ms": 1.0, "right": True, "sentences": 2, "searches": 3}

    lines = [
        {"at_once": arm([True, False], tokens=100), "flare": arm([True], tokens=300)},
        {"at_once": arm([True], tokens=100), "flare": arm([], tokens=100)},
    ]
    found = summary(lines)
    assert (found["questions"], found["with_sentences"]) == (2, 1)
    assert found["supported"] == {"at_once": 0.5, "flare": 1.0}
    assert found["supported_difference"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert found["tokens"]["value"] == 3.0
