"""Deciding logged questions again: what counts as a difference, and what cannot be decided."""

import json
from dataclasses import asdict, is_dataclass, replace
from typing import Any

import pytest

from app.core.artifact import Artifact
from app.core.effective_policy import resolve
from app.core.policy import AskOptions, Policy
from app.core.replay import Logged, Replayed, inputs_of, replay_logged, step_values
from app.errors import ArtifactError
from tests.fakes.artifacts import a_chat_artifact, a_ladder_artifact, a_line, an_artifact, closed_book
from tests.fakes.walks import World, walk


def probed(p: float) -> dict[str, float]:
    """The evidence of a closed-book answer that is right with probability p."""
    return {f"k0.{name}": value for name, value in closed_book(p).items()}


ARTIFACT = an_artifact()
# Only the ladder weighs options.
WEIGHED: dict[str, Any] = {"options": [], "moved": []}
PROBE: dict[str, Any] = {"state": "", "action": "read 0", "wanted": None, "why": None, "p": None} | WEIGHED
STOP: dict[str, Any] = {"state": "k0", "action": "stop 0", "wanted": 0, "why": "confident", "p": 0.875} | WEIGHED
LOGGED = Logged(
    id="0123",
    k=0,
    action="k0",
    reason="confident",
    confidence=0.875,
    certified=True,
    calibrator="v1",
    evidence=probed(0.875),
    failed_upstream=None,
    failure_kind=None,
    effective_policy={
        "ks": [0, 1, 5],
        "kind": {"thresholds": {"tau0": 0.75, "tau1": 0.5}, "few": 1, "many": 5},
        "minimum": 0,
        "maximum": 5,
        "required": False,
        "chat": False,
        "tau": 0.25,
        "abstain": True,
        "certifiable": True,
        "sampled": {"share": 0.0, "explore": None, "shadow": False, "solicit": False},
    },
    steps=[PROBE, STOP],
)


def load(_: str) -> Artifact:
    return ARTIFACT


def again(one: Logged) -> tuple[str, ...]:
    """Where a decision differs from the log."""
    (done,) = replay_logged([one], load)
    return done.differences


def test_the_same_decision_has_no_difference() -> None:
    """Also where another machine rounds a probability differently."""
    assert again(LOGGED) == ()
    assert again(replace(LOGGED, confidence=0.875 + 1e-15)) == ()


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"reason": "borderline"}, ("reason: logged borderline, now confident",)),
        ({"confidence": 0.8}, ("confidence: logged 0.8, now 0.875",)),
        ({"confidence": None}, ("confidence: logged None, now 0.875",)),
        ({"certified": False}, ("certified: logged False, now True",)),
        ({"steps": [PROBE, STOP | {"why": "explored"}]}, ("why of step 2: logged explored, now confident",)),
    ],
)
def test_a_difference_says_what_was_logged_and_what_comes_out(
    changes: dict[str, Any], differences: tuple[str, ...]
) -> None:
    """One for each value."""
    assert again(replace(LOGGED, **changes)) == differences


def test_another_choice_needs_what_was_never_bought() -> None:
    """Under other thresholds the search would run, of which there is no result: every value of the end differs."""
    kind = {"thresholds": {"tau0": 0.9, "tau1": 0.5}, "few": 1, "many": 5}
    found = again(replace(LOGGED, effective_policy={**LOGGED.effective_policy, "kind": kind}))
    assert "action of step 2: logged stop 0, now search" in found
    assert "action: logged k0, now None" in found


def searched(p: float) -> list[dict[str, Any]]:
    """The steps of a decision whose search failed."""
    choice = {"wanted": 5, "why": "uncertain", "p": p} | WEIGHED
    return [PROBE, {"state": "k0", "action": "search"} | choice, {"state": "k0", "action": "stop 0"} | choice]


@pytest.mark.parametrize(
    ("part", "kind", "reason"),
    [
        ("vectors", "timeout", "retrieval_failed"),
        (None, "no_passages", "no_passages"),
        ("reader", "timeout", "degraded"),
    ],
)
def test_a_failure_happens_again(part: str | None, kind: str, reason: str) -> None:
    """The search that failed or found nothing, or the reader; each has its own reason."""
    probe = {"evidence": probed(0.375), "confidence": 0.375, "certified": False, "steps": searched(0.375)}
    one = replace(LOGGED, failed_upstream=part, failure_kind=kind, reason=reason, **probe)
    assert again(one) == ()
    assert again(replace(one, failed_upstream=None, failure_kind=None)) != ()


def test_the_artifact_is_read_once_and_may_be_gone() -> None:
    """A decision by a calibrator that is not there is not decided; the others are."""
    asked: list[str] = []

    def some(version: str) -> Artifact:
        asked.append(version)
        if version == "gone":
            raise ArtifactError("gone.json does not exist")
        return an_artifact(calibrators={0: a_line()})

    lost = [replace(LOGGED, id=name, calibrator="gone") for name in ("a", "b")]
    problem = "its calibrator gone cannot be loaded: gone.json does not exist"
    assert list(replay_logged([*lost, LOGGED, LOGGED], some)) == [
        Replayed("a", problem=problem),
        Replayed("b", problem=problem),
        Replayed("0123"),
        Replayed("0123"),
    ]
    assert asked == ["gone", "v1"]


def logged(ask: AskOptions, artifact: Artifact | None, world: World, *, chat: bool) -> Logged:
    """A walk as a row of the log: what JSON keeps of it."""
    done = walk(resolve(ask, artifact, ks=(0, 1, 5), chat=chat), world)
    row = json.loads(
        json.dumps(
            {
                "effective_policy": {name: _plain(value) for name, value in inputs_of(done.policy).items()},
                "steps": [step_values(step) for step in done.steps],
                "evidence": dict(done.available.evidence),
            }
        )
    )
    reply = done.reply
    return Logged(
        id="0123",
        k=reply.k,
        action="abstain" if reply.withheld else f"k{reply.k}",
        reason=reply.reason.value,
        confidence=reply.confidence,
        certified=reply.certified,
        calibrator=None if artifact is None else "v1",
        failed_upstream=None,
        failure_kind=None,
        **row,
    )


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


ANSWERS = World({0: closed_book(0.5), 1: closed_book(0.375), 5: closed_book(0.75)})


@pytest.mark.parametrize(
    ("ask", "artifact", "chat"),
    [
        (AskOptions(), a_ladder_artifact(), False),
        (AskOptions(Policy.NEVER), a_ladder_artifact(), False),
        (AskOptions(Policy.GRADED), an_artifact(), False),
        (AskOptions(Policy.ALWAYS), None, False),
        (AskOptions(), a_chat_artifact(), True),
        (AskOptions(Policy.ALWAYS), None, True),
    ],
    ids=["ladder", "never", "graded", "nothing calibrated", "one shot", "chat without a calibrator"],
)
def test_every_kind_of_policy_is_decided_again(ask: AskOptions, artifact: Artifact | None, chat: bool) -> None:
    """From its row alone; a value of an option that differs is a difference."""
    one = logged(ask, artifact, ANSWERS, chat=chat)
    (done,) = replay_logged([one], lambda _: artifact or ARTIFACT)
    assert done == Replayed("0123")
    steps = [dict(step) for step in one.steps]
    for step in steps:
        step["options"] = [{**option, "value": option["value"] / 2} for option in step["options"]]
    (other,) = replay_logged([replace(one, steps=steps)], lambda _: artifact or ARTIFACT)
    assert bool(other.differences) == any(step["options"] for step in steps)
