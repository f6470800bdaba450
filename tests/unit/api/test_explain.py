"""The sentences of steps, and the scope in words."""

import pytest

from app.api.explain import phrase, scope_out, sentence, step_out
from app.core.available import Available
from app.core.effective_policy import EffectivePolicy, Fixed
from app.core.evidence import NEARNESS
from app.core.ladder import Action, Option, Read, Search, Step, Stop
from app.core.policy import Reason
from app.core.scope import Scope

CHOICE = (Option(Stop(0), 0.41), Option(Read(1), 0.83, 0.03))


def test_a_purchase_names_value_price_alternative_and_evidence() -> None:
    """One sentence holds what was expected, what it cost, what was available, and what moved the value."""
    moved = (("search.cosine", 1.2), ("k0.support_max", -0.8), ("k0.margin", -0.3))
    step = Step("search+k0", Read(1), options=CHOICE, moved=moved)
    assert sentence(step, {"search.cosine": 0.71, "k0.support_max": 0.0}) == (
        "Read one passage: expected 0.83 at a price of 0.03, against 0.41 now; raised most by the similarity of the "
        "best passage (0.71), lowered most by no passage that supports the closed-book answer (0.00) and the margin of "
        "the closed-book answer (not known)."
    )


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            Step("", Search(), options=(Option(Search(), 0.9, 0.001), Option(Read(0), 0.3, 0.1))),
            "Search for passages: expected 0.90 at a price of less than 0.01, against 0.30 at a price of 0.10 to ask "
            "the model without passages.",
        ),
        (
            Step("search+k0", Stop(0), 0, Reason.CONFIDENT, options=(Option(Stop(0), 0.9), Option(Read(1), 0.8, 0.0))),
            "Stop with the closed-book answer: it is right with probability 0.90, against 0.80 at a price of 0.00 to "
            "read one passage.",
        ),
        (
            Step("search+k0+k5", Stop(5), 5, Reason.UNCERTAIN, options=(Option(Stop(0), 0.1), Option(Stop(5), 0.6))),
            "Stop with the answer from five passages: it is right with probability 0.60, and nothing more can be "
            "bought.",
        ),
        (
            Step("search+k0", Stop(1), 1, Reason.BORDERLINE, options=(Option(Stop(0), 0.4), Option(Stop(1), 0.6, 0.1))),
            "Write with one passage: a short answer would be right with probability 0.60, against 0.40 at a price of "
            "0.00 to write without passages.",
        ),
        (
            Step("search", Stop(5), 5, Reason.NOT_CALIBRATED),
            "Write with five passages: no calibrator matches this system.",
        ),
        (
            Step("", Read(0)),
            "Ask the model without passages: the probability of this answer decides what follows.",
        ),
        (
            Step("k0", Search(), 12, Reason.BORDERLINE, 0.44),
            "Search for passages: the closed-book answer is not likely enough to be right (probability 0.44).",
        ),
        (Step("search", Read(12), 12, Reason.NOT_CALIBRATED), "Read 12 passages: no calibrator matches this system."),
        (Step("search", Stop(None), why=Reason.OUT_OF_SCOPE), "Stop without an answer: the question is out of scope."),
        (Step("", Stop(None), 1, Reason.NO_SIGNAL), "Stop without an answer: no answer may be given."),
    ],
)
def test_every_kind_of_step_has_a_sentence(step: Step, said: str) -> None:
    """Purchases, stops, and steps where nothing was weighed."""
    assert sentence(step, {}) == said


@pytest.mark.parametrize("action", [Search(), Read(0), Read(5), Stop(0), Stop(5), Stop(None)])
@pytest.mark.parametrize("why", [None, *Reason])
def test_no_reason_is_without_words(action: Action, why: Reason | None) -> None:
    """Every action with every reason gives one sentence without names of the code."""
    said = step_out(Step("", action, 0, why), {})["sentence"]
    assert said.endswith(".")
    assert "_" not in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("k0~k1.agreement", "the agreement of the closed-book answer and the answer from one passage"),
        ("k5.margin@1", "the margin of the answer from five passages at token 1"),
        ("search.brand_new", "brand new"),
        ("k1.brand_new", "brand new of the answer from one passage"),
        ("odd", "odd"),
    ],
)
def test_evidence_in_words(name: str, said: str) -> None:
    """Known names have phrases, and a new one is readable without an edit."""
    assert phrase(name) == said


@pytest.mark.parametrize(
    ("evidence", "alarm"),
    [
        ({NEARNESS: 0.9, "search.gap": 0.2}, None),
        ({NEARNESS: 0.1}, "The question is not near the collected questions (nearness 0.1)."),
        (
            {NEARNESS: 0.9, "search.gap": 0.0},
            "The evidence is below that of the collected questions: the lead of the best passage over the second "
            "(0.00).",
        ),
        (
            {"scope.script:GREEK": 1.0},
            "The question has letters of a script that no collected question has: GREEK.",
        ),
        ({"search.gap": 0.2}, "The scope test is not complete: evidence that it needs is missing."),
    ],
)
def test_scope_in_words(evidence: dict[str, float], alarm: str | None) -> None:
    """The receipt says what the calibrator covers, and why a question is outside."""
    scope = Scope(0.01, {NEARNESS: 0.5, "search.gap": 0.1}, None, ("LATIN",), "capitals")
    policy = EffectivePolicy((0, 1), Fixed(1, Reason.NOT_CERTIFIED), 0, 1, scope=scope)
    available = Available(evidence=evidence)
    found = scope_out(policy, available, in_scope=policy.complete(available) and policy.alarm(available) is None)
    assert found == {"in_scope": alarm is None, "covers": "capitals", "alarm": alarm}
