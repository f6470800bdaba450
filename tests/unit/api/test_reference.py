"""The first sentences of the dashboard."""

from dataclasses import replace
from typing import Any

import pytest

from app.api.reference import against_reference
from tests.fakes.artifacts import a_certificate, a_ladder, a_ladder_artifact, an_artifact, an_uncertified_fit

ACCURACY = {"ladder": {"value": 0.79}, "k0": {"value": 0.41}, "k1": {"value": 0.74}, "k5": {"value": 0.76}}
COST = {"tokens": {"ladder": {"mean": 190.0}, "k5": {"mean": 380.0}}}
CERTIFIED = (
    "Certified with 95 % confidence: more accurate than every fixed number of passages, "
    "by at least 3.1 percentage points."
)


@pytest.mark.parametrize(
    ("report", "measured"),
    [
        (
            {"test": {"accuracy": ACCURACY, "cost": COST}},
            [
                "On its test questions the policy ladder is right for 79 %, always reading five passages for 76 %; its "
                "cost in tokens is 50 % lower."
            ],
        ),
        (
            {"test": {"accuracy": ACCURACY | {"k0": 0.8}}},
            ["On its test questions the policy ladder is right for 79 %, answering without passages for 80 %."],
        ),
        ({"test": {"accuracy": 0.75}}, []),
        ({}, []),
    ],
)
def test_accuracy_and_cost_next_to_the_best_fixed_k(report: dict[str, Any], measured: list[str]) -> None:
    """What the report lacks is left out; the certificate follows."""
    fit = a_ladder(certificate=a_certificate(epsilon=0.0, bound=0.03125, reference="every fixed action"))
    assert against_reference(a_ladder_artifact(report=report, ladder=fit)) == [*measured, CERTIFIED]


def test_other_certificates() -> None:
    """A margin and a single reference are named; without a certificate, the reason is."""
    fit = a_ladder(certificate=a_certificate(reference="always-k5"))
    assert against_reference(a_ladder_artifact(ladder=fit)) == [
        "Certified with 95 % confidence: at most 2.0 percentage points less accurate than always reading five passages."
    ]
    graded = an_artifact(policies={"graded": an_uncertified_fit()})
    assert against_reference(graded) == ["It is not certified: too few labels."]
    assert against_reference(replace(graded, policies={})) == []
    assert against_reference(None) == []
