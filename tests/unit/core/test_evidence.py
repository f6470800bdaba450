"""Evidence: reference values, absent rather than invented, and one function is enough for a new feature."""

import math

import pytest

from app.core import evidence
from app.core.available import Answer, Available, Passage, Usage
from app.core.corpus_stats import CorpusStats
from app.core.evidence import NEARNESS, about, belongs, is_rising, known_in, required

QUESTION = "What is the capital of Jamaica?"
PASSAGES = (
    Passage("a", "Jamaica: geography", "The capital city of Jamaica is Kingston.", 0.75),
    Passage("b", "Cuba: geography", "The capital city of Cuba is Havana.", 0.5),
)
# Every word of a single passage is as rare as an unknown one.
STATS = CorpusStats.of((passage.title, passage.text) for passage in PASSAGES)
RARE, COMMON = math.log(3 / 0.5), math.log(3 / 2.5)


def answer(k: int, text: str, **signals: float) -> Answer:
    return Answer(k, text, signals, Usage(10, 4), passages_read=k)


def bought(*answers: Answer, passages: tuple[Passage, ...] = PASSAGES) -> Available:
    available = Available.at_first(QUESTION, STATS).found(passages)
    for one in answers:
        available = available.answered(one)
    return available


def test_rarity_counts_passages() -> None:
    """A word of both passages says less than a word of one."""
    assert STATS.counts == {"capital": 2, "city": 2, "geography": 2, "is": 2, "of": 2, "the": 2}
    assert STATS.weight(["capital"]) == pytest.approx(COMMON)
    assert STATS.weight(["kingston"]) == STATS.weight(["mordor"]) == pytest.approx(RARE)


def test_the_search() -> None:
    """Cosines, their gaps, and the share of the question's words in a passage, weighted by rarity."""
    assert bought().evidence == pytest.approx(
        {
            "scope.script:LATIN": 1.0,
            "search.cosine": 0.75,
            "search.gap": 0.25,
            "search.gap_last": 0.25,
            "search.spread": 0.125,
            "search.coverage": 1.0,
            "search.coverage_max": 1.0,
        }
    )
    first = bought(passages=PASSAGES[1:]).evidence
    assert first["search.coverage"] == pytest.approx(COMMON / (COMMON + RARE))
    assert "search.gap" not in first


def test_support_of_an_answer() -> None:
    """By its words that the question does not have; an echo has none."""
    found = bought(answer(0, "Kingston, the capital.", seq_logprob=-0.5)).evidence
    assert (found["k0.support"], found["k0.support_max"], found["k0.support_mean"]) == (1.0, 1.0, 0.5)
    assert found["k0.joint"] == pytest.approx(1.0)
    assert (found["k0.seq_logprob"], found["k0.tokens"], found["k0.new_words"]) == (-0.5, 4.0, 1.0)
    echo = bought(answer(0, "The capital of Jamaica is the capital.")).evidence
    assert (echo["k0.support"], echo["k0.joint"], echo["k0.new_words"]) == (0.0, 0.0, 0.0)


def test_support_is_known_once_the_search_has_run() -> None:
    """Whether the answer or the search comes first, the evidence is the same in the end."""
    probe = answer(0, "Kingston", margin=2.0)
    before = Available.at_first(QUESTION, STATS).answered(probe)
    assert "k0.support" not in before.evidence
    assert before.found(PASSAGES).evidence == bought(probe).evidence


def test_agreement_of_two_answers() -> None:
    """By words, over the shorter and over both; absent where an answer says nothing new."""
    found = bought(answer(0, "Kingston"), answer(1, "It is Kingston, a port."), answer(5, "")).evidence
    assert (found["k0~k1.agreement"], found["k0~k1.overlap"]) == (1.0, 0.5)
    assert "k0~k5.agreement" not in found


@pytest.mark.parametrize("text", ["", "???", " "])
def test_an_empty_answer_or_passage_has_no_support(text: str) -> None:
    """Nothing is divided by zero."""
    found = bought(answer(1, text), passages=(Passage("a", "", text, 0.5),)).evidence
    assert (found["k1.support"], found["search.coverage"]) == (0.0, 0.0)
    assert bought(answer(1, text), passages=()).evidence.keys() == {"scope.script:LATIN", "k1.tokens", "k1.new_words"}


def test_no_evidence_is_invented() -> None:
    """A missing or infinite signal is absent, and so is nearness without a vector or centroids."""
    found = Available.at_first(QUESTION, STATS, [1.0, 0.0]).answered(answer(0, "x", margin=math.nan)).evidence
    assert "k0.margin" not in found
    assert NEARNESS not in found


def test_names_say_what_they_need() -> None:
    """A name belongs to the states in which everything that it is about is available."""
    assert about("k0~k1.agreement") == {"k0", "k1"}
    assert about("k0.support") == {"k0", "search"}
    assert belongs("k0.margin", "k0")
    assert not belongs("k0.support", "k0")
    assert belongs("k0.support", "search+k0")
    assert not belongs(NEARNESS, "search+k0")
    assert known_in("search", bought(answer(0, "Kingston")).evidence) == bought().evidence


def test_what_never_lowers_a_probability() -> None:
    """Signals, support and agreement of an answer raise its own probability, not that of another."""
    assert is_rising("k0.support", 0)
    assert is_rising("k0~k1.agreement", 1)
    assert not is_rising("k0.support", 1)
    assert not is_rising("k0.tokens", 0)
    assert not is_rising("search.cosine", 0)


def test_required_evidence_of_a_state() -> None:
    """Three signals of each answer, and the best cosine."""
    assert required("") == ()
    assert required("search+k1") == ("search.cosine", "k1.seq_logprob", "k1.neg_entropy", "k1.margin")


def test_a_new_feature_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed, belongs to its states and may rise, by its name alone."""
    monkeypatch.setattr(evidence, "_SUPPORT", dict(evidence._SUPPORT))
    monkeypatch.setattr(evidence, "_RISING", set(evidence._RISING))

    @evidence.feature(evidence._SUPPORT, "supporters", rising=True)
    def supporters(checked: evidence.Checked) -> float:
        return float(sum(share > 0.5 for share in checked.supports))

    assert bought(answer(0, "Kingston")).evidence["k0.supporters"] == 1.0
    assert belongs("k0.supporters", "search+k0")
    assert is_rising("k0.supporters", 0)
