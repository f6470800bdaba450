"""The artifact: canonical bytes, a version that names the content, and validated numbers."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.artifact import (
    FIXED,
    Abstention,
    Artifact,
    DataWindow,
    Identity,
    LabelsNeeded,
    Thresholds,
    canonical_bytes,
    checksum,
    content_version,
    mismatches,
)
from app.core.cost import Objective
from app.core.effective_policy import Graded
from app.core.scope import Scope
from tests.fakes.artifacts import (
    a_certificate,
    a_chat,
    a_chat_artifact,
    a_fit,
    a_ladder,
    a_line,
    an_abstention,
    an_artifact,
    an_identity,
    heads_by_k,
)

OTHER_IDENTITY: dict[str, Any] = {
    "reader": "another",
    "quantisation": "q4",
    "chat_template": "another",
    "prompts": "another",
    "writing": "another",
    "max_tokens": 25,
    "stop": ("\n", "."),
    "logprobs": "top5",
    "embedder": "another",
    "collection": "another",
    "ks": (0, 1, 3),
}
OTHER: dict[str, Any] = {
    "name": "another",
    "version": "another",
    "created": "2026-02-01T12:00:00Z",
    "identity": None,
    "ks": (0, 1, 6),
    "heads": heads_by_k({0: a_line()}),
    "ladder": a_ladder(),
    "chat": a_chat(),
    "scope": Scope(0.02, {}, None, ("LATIN",), "all"),
    "stats": "0123456789abcdef",
    "policies": {"graded": a_fit()},
    "abstention": an_abstention(certificate=None),
    "fallback_k": 5,
    "data_window": DataWindow(rows=2000, groups=1000, source="another"),
    "quantiles": {"seq_logprob": (-1.0, -0.5, -0.25)},
    "report": {"test": {"accuracy": 0.5}},
    "schema": 7,
}


def test_canonical_bytes_do_not_know_the_order_of_keys() -> None:
    """Two artifacts that differ only in the order of their dictionaries have the same bytes."""
    artifact = an_artifact(report={"a": 1, "b": {"c": 2, "d": 3}})
    turned = replace(
        artifact,
        policies=dict(reversed(list(artifact.policies.items()))),
        heads=dict(reversed(list(artifact.heads.items()))),
        report={"b": {"d": 3, "c": 2}, "a": 1},
    )
    assert canonical_bytes(turned) == canonical_bytes(artifact)
    assert checksum(turned) == checksum(artifact)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"report": {"by_k": {2: "a", 10: "b"}}}, {"report": {"by_k": {"10": "b", "2": "a"}}}),
        ({"report": {True: 1}}, {"report": {"true": 1}}),
        ({"report": {"rows": (1, 2)}}, {"report": {"rows": [1, 2]}}),
        ({"policies": {"graded": a_fit(1, 0)}}, {"policies": {"graded": a_fit(1.0, 0.0)}}),
    ],
    ids=["integer keys", "boolean keys", "tuples", "whole thresholds"],
)
def test_canonical_bytes_survive_json(one: dict[str, Any], other: dict[str, Any]) -> None:
    """What JSON changes on the way to a file and back (keys, tuples, 1 for 1.0) changes no checksum."""
    assert canonical_bytes(an_artifact(**one)) == canonical_bytes(an_artifact(**other))


def test_canonical_bytes_are_compact_and_keep_letters() -> None:
    """There is no white space between tokens, and text is UTF-8, not escapes."""
    raw = canonical_bytes(an_artifact(name="naïve"))
    assert "naïve".encode() in raw
    assert b'": ' not in raw
    assert b"\n" not in raw


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_canonical_bytes_refuse_what_json_has_not(number: float) -> None:
    """A NaN or infinity in a report has no canonical bytes."""
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_bytes(an_artifact(report={"x": number}))


def test_the_checksum_changes_with_every_field() -> None:
    """Each field of an artifact, its policies and its identity is under the checksum."""
    assert set(OTHER) == {part.name for part in fields(Artifact)}
    one = an_artifact(heads=a_chat_artifact().heads)
    seen = {checksum(one)} | {checksum(replace(one, **{name: value})) for name, value in OTHER.items()}
    assert len(seen) == len(OTHER) + 1
    inside = [
        an_artifact(policies={"graded": replace(a_fit(), **change)})
        for change in (
            {"thresholds": Thresholds(0.75, 0.25)},
            {"objective": Objective.MONEY},
            {"certificate": a_certificate(n=801)},
            {"uncertified_reason": "x"},
            {"labels_needed": LabelsNeeded(1, 1, None)},
        )
    ]
    assert len({checksum(artifact) for artifact in inside}) == len(inside)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_checksum_distinguishes_any_two_numbers(one: float, other: float) -> None:
    """Two thresholds that differ in their last bit have different checksums, and equal ones the same."""
    sums = [checksum(an_artifact(abstention=Abstention(tau, risk_target=0.1))) for tau in (one, other)]
    assert (sums[0] == sums[1]) == (one == other)


def test_content_version_names_day_and_content() -> None:
    """The version begins with the day, follows the content, and does not depend on the version itself."""
    artifact = an_artifact(heads=a_chat_artifact().heads)
    version = content_version(artifact)
    assert version.startswith("2026-01-31-")
    assert len(version) == len("2026-01-31-") + 8
    assert content_version(replace(artifact, version=version)) == version
    for name, value in OTHER.items():
        if name != "version":
            assert content_version(replace(artifact, **{name: value})) != version


def test_equal_identities_match() -> None:
    """Two identities that are equal in every field have no mismatch."""
    assert mismatches(an_identity(), an_identity()) == []


@pytest.mark.parametrize("name", [part.name for part in fields(Identity)])
def test_a_mismatch_names_its_part(name: str) -> None:
    """A difference in any field is named, with the fitted and the running value."""
    running = an_identity(**{name: OTHER_IDENTITY[name]})
    (said,) = mismatches(an_identity(), running)
    assert said == f"{name}: fitted on {getattr(an_identity(), name)!r}, running {OTHER_IDENTITY[name]!r}"


def test_every_mismatch_is_named() -> None:
    """Where all fields differ, all are named, in order."""
    said = mismatches(an_identity(), an_identity(**OTHER_IDENTITY))
    assert [line.split(":")[0] for line in said] == [part.name for part in fields(Identity)]


@pytest.mark.parametrize(
    ("tau0", "tau1"), [(0.5, 0.6), (0.5, -0.1), (2.1, 0.5), (math.nan, 0.5), (0.5, math.nan), (math.inf, 0.0)]
)
def test_thresholds_out_of_order_are_refused(tau0: float, tau1: float) -> None:
    """Thresholds that do not satisfy 0 <= tau1 <= tau0 <= 2 raise an error."""
    with pytest.raises(ValueError, match="0 <= tau1 <= tau0 <= 2"):
        Thresholds(tau0, tau1)


@pytest.mark.parametrize("k", [0, 1, 5])
@given(p0=st.floats(0.0, 1.0))
def test_every_fixed_action_is_a_pair_of_thresholds(k: int, p0: float) -> None:
    """`FIXED` reads k passages whatever the probability, one included."""
    fixed = FIXED[(0, 1, 5).index(k)]
    graded = Graded(fixed, 1, 5)
    assert {graded.choose(p)[0] for p in (p0, 1.0)} == {k}


@pytest.mark.parametrize("tau", [-0.1, 2.1, math.nan])
def test_an_abstention_threshold_must_make_sense(tau: float) -> None:
    """A tau below 0, above 2 or NaN is refused."""
    with pytest.raises(ValueError, match="tau_abstain"):
        Abstention(tau, risk_target=0.1)


@pytest.mark.parametrize("action", [0, 2, 10])
def test_the_fallback_reads(action: int) -> None:
    """The fallback k is one of the k's above 0."""
    with pytest.raises(ValueError, match="fallback_k must be one of"):
        an_artifact(fallback_k=action)


@pytest.mark.parametrize("ks", [(1, 2, 5), (0, 5, 1), (0, 1, 1)])
def test_ks_begin_with_none_and_rise(ks: tuple[int, int, int]) -> None:
    """A policy chooses among no passage, few and many."""
    with pytest.raises(ValueError, match="rise from 0"):
        an_artifact(ks=ks, calibrators={0: a_line()}, fallback_k=ks[1])


def test_the_closed_book_answer_has_a_head() -> None:
    """`graded`, `binary` and a failed search need it."""
    with pytest.raises(ValueError, match="the closed-book answer in the state k0"):
        an_artifact(heads={"search+k1": {1: a_line()}})
