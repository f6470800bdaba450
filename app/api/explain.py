"""One plain sentence for each step of a decision, and the result of the scope test in words."""

from collections.abc import Callable, Mapping
from typing import Any

from app.core.available import Available
from app.core.effective_policy import EffectivePolicy
from app.core.evidence import COVERAGE, NEARNESS, SCRIPT
from app.core.ladder import Action, Option, Read, Search, Step, Stop
from app.core.policy import Reason

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# Evidence by the last part of its name; {of} is the answer, or the two answers, that it describes. A name that is not
# listed is shown with its underscores as spaces.
_PHRASES = {
    "cosine": "the similarity of the best passage",
    "gap": "the lead of the best passage over the second",
    "gap_last": "the lead of the best passage over the last",
    "spread": "the spread of the similarities",
    "coverage": "the share of the question's words in the best passage",
    "coverage_max": "the share of the question's words in one passage",
    "support": "the support for {of} in the best passage",
    "support_max": "the support for {of} in any one passage",
    "support_mean": "the mean support for {of} in the passages",
    "joint": "one passage with the words of both the question and {of}",
    "sentence": "one sentence with the words of both the question and {of}",
    "agreement": "the agreement of {of}",
    "overlap": "the overlap of {of}",
    "tokens": "the length of {of}",
    "new_words": "the number of new words in {of}",
    "rarest": "the rarest new word in {of}",
    "seq_logprob": "the mean log-probability of {of}",
    "neg_entropy": "the certainty of each token of {of}",
    "margin": "the margin of {of}",
}
_AT_ZERO = {
    "coverage_max": "no passage with a word of the question",
    "support": "a best passage that does not support {of}",
    "support_max": "no passage that supports {of}",
    "support_mean": "no passage that supports {of}",
    "joint": "no passage with the words of both the question and {of}",
    "sentence": "no sentence with a new word of {of}",
    "agreement": "no agreement of {of}",
    "overlap": "no overlap of {of}",
}
# Why, where nothing was weighed.
_WHY = {
    Reason.CONFIDENT: "the closed-book answer is likely enough to be right",
    Reason.BORDERLINE: "the closed-book answer is not likely enough to be right",
    Reason.UNCERTAIN: "the closed-book answer is unlikely to be right",
    Reason.RETRIEVAL_REQUIRED: "passages are required",
    Reason.RETRIEVAL_FORBIDDEN: "passages are forbidden",
    Reason.NO_SIGNAL: "evidence is missing, so no probability is known",
    Reason.NOT_CALIBRATED: "no calibrator matches this system",
    Reason.NOT_CERTIFIED: "the calibrator has no certificate for this policy",
    Reason.BYPASSED: "gating does not pay at the moment",
    Reason.EXPLORED: "the number of passages was drawn at random",
    Reason.OUT_OF_SCOPE: "the question is out of scope",
}

# The reasons that the probability of the closed-book answer leads to.
_OF_P = frozenset({Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN})


def step_out(step: Step, evidence: Mapping[str, float]) -> dict[str, Any]:
    """A step as receipts and streams show it; `evidence` holds at least what was known at this step."""
    return {
        "state": step.state,
        "options": [
            {"action": str(option.action), "value": option.value, "price": option.price} for option in step.options
        ],
        "action": str(step.action),
        "why": step.why.value if step.why else None,
        "sentence": sentence(step, evidence),
    }


def sentence(step: Step, evidence: Mapping[str, float]) -> str:
    """What was done, what it was expected to bring, and the evidence that moved this number most."""
    available = step.state.split("+")
    # Of chat: the answers are not bought, but written.
    written = any(isinstance(one, Stop) and one.k is not None and f"k{one.k}" not in available for one in _stops(step))
    if not step.options:
        return f"{_writes(step.action) if written else _does(step.action)}: {_without_options(step)}."
    chosen = next(option for option in step.options if option.action == step.action)
    stops = [option for option in step.options if isinstance(option.action, Stop) and option is not chosen]
    purchases = [option for option in step.options if not isinstance(option.action, Stop) and option is not chosen]
    if written:
        said = f"{_writes(step.action)}: a short answer would be right with probability {chosen.value:.2f}"
        said += _against(stops, _writes)
    elif isinstance(step.action, Stop):
        said = f"{_does(step.action)}: it is right with probability {chosen.value:.2f}"
        said += _against(purchases) if purchases else ", and nothing more can be bought"
    else:
        said = f"{_does(step.action)}: expected {chosen.value:.2f} at a price of {_price(chosen)}"
        said += f", against {max(option.value for option in stops):.2f} now" if stops else _against(purchases)
    return f"{said}{_moved(step, evidence)}."


def _stops(step: Step) -> list[Action]:
    return [step.action, *(option.action for option in step.options)]


def _writes(action: Action) -> str:
    k = action.k if isinstance(action, Stop) else None
    return f"Write with {_passages(k)}" if k else "Write without passages"


def _against(options: list[Option], does: Callable[[Action], str] | None = None) -> str:
    """The best alternative, where there is one."""
    if not options:
        return ""
    best = max(options, key=lambda option: option.value - option.price)
    other = (does or _does)(best.action)
    return f", against {best.value:.2f} at a price of {_price(best)} to {other[0].lower()}{other[1:]}"


def _price(option: Option) -> str:
    return f"{option.price:.2f}" if option.price >= 0.01 or option.price == 0.0 else "less than 0.01"


def _without_options(step: Step) -> str:
    if step.why is None:
        return "the probability of this answer decides what follows"
    if step.action == Stop(None) and step.why is not Reason.OUT_OF_SCOPE:
        return "no answer may be given"
    why = _WHY.get(step.why, step.why.value.replace("_", " "))
    return f"{why} (probability {step.p:.2f})" if step.p is not None and step.why in _OF_P else why


def _does(action: Action) -> str:
    match action:
        case Search():
            return "Search for passages"
        case Read(0):
            return "Ask the model without passages"
        case Read(k):
            return f"Read {_passages(k)}"
        case Stop(k):
            return "Stop without an answer" if k is None else f"Stop with {_answer(k)}"


def _passages(k: int) -> str:
    return f"{_NUMBERS[k] if k < len(_NUMBERS) else k} {'passage' if k == 1 else 'passages'}"


def _answer(k: int) -> str:
    return "the closed-book answer" if k == 0 else f"the answer from {_passages(k)}"


def _moved(step: Step, evidence: Mapping[str, float]) -> str:
    """What raised and what lowered the chosen value most."""
    found = []
    for verb, names in (
        ("raised", [name for name, by in step.moved if by > 0]),
        ("lowered", [name for name, by in step.moved if by < 0]),
    ):
        if names:
            found.append(f"{verb} most by {' and '.join(_with_value(name, evidence) for name in names)}")
    return f"; {', '.join(found)}" if found else ""


def _with_value(name: str, evidence: Mapping[str, float]) -> str:
    value = evidence.get(name)
    said = phrase(name, value)
    return f"{said} (not known)" if value is None else f"{said} ({value:.2f})"


def phrase(name: str, value: float | None = None) -> str:
    """A name of evidence in words, such as `k0.support`; some have other words where the value is 0."""
    subject, _, what = name.partition(".")
    if not what:
        return name.replace("_", " ")
    # `margin@1` is the margin of the first token.
    what, _, place = what.partition("@")
    of = " and ".join(map(_subject, subject.split("~")))
    words = _AT_ZERO.get(what) if value == 0.0 else None
    words = words or _PHRASES.get(what) or (what.replace("_", " ") + (" of {of}" if subject != "search" else ""))
    return words.replace("{of}", of) + (f" at token {place}" if place else "")


def _subject(part: str) -> str:
    return _answer(int(part[1:])) if part[:1] == "k" and part[1:].isdigit() else part


def scope_out(policy: EffectivePolicy, available: Available, *, in_scope: bool) -> dict[str, Any]:
    """Whether the question is like those that the calibrator was fitted on, which these are, and why it is not."""
    return {
        "in_scope": in_scope,
        "covers": policy.scope.covers if policy.scope else None,
        "alarm": None if in_scope else _alarm(policy, available),
    }


def _alarm(policy: EffectivePolicy, available: Available) -> str:
    name = policy.alarm(available)
    if name is None:
        return "The scope test is not complete: evidence that it needs is missing."
    if name.startswith(SCRIPT):
        return f"The question has letters of a script that no collected question has: {name.removeprefix(SCRIPT)}."
    value = available.evidence[name]
    if name == NEARNESS:
        return f"The question is not near the collected questions (nearness {value:.3g})."
    if name == COVERAGE:
        return f"No passage holds enough of the words of the question (share {value:.3g})."
    return f"The evidence is below that of the collected questions: {phrase(name, value)} ({value:.2f})."
