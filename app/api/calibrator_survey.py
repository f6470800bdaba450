"""The calibrator folder described: for `GET /calibrators`, and for `fetchwise calibrators list --json`."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.adapters.artifact_store import ArtifactStore
from app.decision.artifact import Abstention, Artifact, Certificate, PolicyFit
from app.errors import ArtifactError

_CHANGES_SHOWN = 20


class CertificateOut(BaseModel):
    """With probability 1 - delta, epsilon holds against the reference; `bound` is what n groups showed."""

    epsilon: float
    delta: float
    reference: str
    n: int
    bound: float


class PolicyOut(BaseModel):
    """The thresholds of one policy, and their certificate or why there is none."""

    tau0: float
    tau1: float
    objective: str
    certificate: CertificateOut | None
    why_not: str | None
    labels_needed: int | None


class AbstentionOut(BaseModel):
    """The confidence below which answers are withheld, and its certificate or why there is none."""

    tau: float
    risk_target: float
    certificate: CertificateOut | None
    why_not: str | None
    labels_needed: int | None


class VersionOut(BaseModel):
    """One calibrator; all but its version and its problem are null where its file cannot be read."""

    version: str
    current: bool = Field(description="Whether CURRENT names it.")
    serving: bool = Field(description="Whether this worker holds it.")
    problem: str = Field(description="Why it cannot serve here: unreadable, fitted on something else, or revoked.")
    certified: bool | None = Field(description="Whether its graded policy carries a certificate.")
    created: str | None
    identity: dict[str, Any] | None = Field(description="What it was fitted on: all of it must be what runs.")
    policies: dict[str, PolicyOut] | None
    abstention: AbstentionOut | None
    fallback_action: int | None = Field(description="Passages read where its thresholds may not decide.")
    data: dict[str, Any] | None = Field(description="The rows and groups behind it, and their source.")


class ChangeOut(BaseModel):
    """One change of CURRENT, and the command that made it."""

    at: str
    version: str
    before: str | None
    by: str


_CERTIFICATE = {"epsilon": 0.02, "delta": 0.1, "reference": "every fixed action", "n": 762, "bound": -0.0152}
_EXAMPLE: dict[str, Any] = {
    "current": "2026-11-16-a03c1208",
    "serving": "2026-11-16-a03c1208",
    "problem": "",
    "versions": [
        {
            "version": "2026-11-16-a03c1208",
            "current": True,
            "serving": True,
            "problem": "",
            "certified": True,
            "created": "2026-11-16T06:39:41+00:00",
            "identity": {"reader": "SmolLM2-135M-Instruct", "quantisation": "Q8_0", "collection": "demo"},
            "policies": {
                "graded": {
                    "tau0": 0.59,
                    "tau1": 0.0,
                    "objective": "passage",
                    "certificate": _CERTIFICATE,
                    "why_not": None,
                    "labels_needed": None,
                }
            },
            "abstention": {
                "tau": 0.69,
                "risk_target": 0.25,
                "certificate": None,
                "why_not": "too few labels",
                "labels_needed": 4052,
            },
            "fallback_action": 1,
            "data": {"rows": 2067, "groups": 1904, "source": "outcomes.jsonl.gz", "first": None, "last": None},
        }
    ],
    "changes": [{"at": "2026-11-16T06:39:41+00:00", "version": "2026-11-16-a03c1208", "before": None, "by": "refit"}],
}


class CalibratorsOut(BaseModel):
    """The folder of calibrators as this worker sees it."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    current: str | None = Field(description="What CURRENT names.")
    serving: str | None = Field(description="What this worker holds; another one where CURRENT was refused.")
    problem: str = Field(description="Why questions are not decided by a certified calibrator, if they are not.")
    versions: list[VersionOut] = Field(description="Newest first.")
    changes: list[ChangeOut] = Field(description="The latest changes of CURRENT, newest first.")


def survey(
    store: ArtifactStore,
    most: int,
    *,
    serving: str | None = None,
    standing: str = "",
    problem_of: Callable[[Artifact], str] = lambda _: "",
) -> CalibratorsOut:
    """Look through the folder; `problem_of` says why a sound artifact may not serve here. Blocks."""
    current, changes = None, []
    try:
        current = store.current()
        changes = store.history()[: -_CHANGES_SHOWN - 1 : -1]
    except ArtifactError as error:
        standing = standing or str(error)
    return CalibratorsOut(
        current=current,
        serving=serving,
        problem=standing,
        versions=[
            described(version, found, current=version == current, serving=version == serving, problem_of=problem_of)
            for version, found in store.survey(most)
        ],
        changes=[ChangeOut(**asdict(change)) for change in changes],
    )


def described(
    version: str,
    found: Artifact | ArtifactError,
    *,
    current: bool,
    serving: bool,
    problem_of: Callable[[Artifact], str],
) -> VersionOut:
    """One version, as much as is known of it."""
    artifact = found if isinstance(found, Artifact) else None
    graded = artifact.policies.get("graded") if artifact else None
    return VersionOut(
        version=version,
        current=current,
        serving=serving,
        problem=problem_of(artifact) if artifact else str(found),
        certified=graded is not None and graded.certificate is not None if artifact else None,
        created=artifact.created if artifact else None,
        identity=asdict(artifact.identity) if artifact and artifact.identity else None,
        policies={name: _policy(fit) for name, fit in artifact.policies.items()} if artifact else None,
        abstention=_abstention(artifact.abstention) if artifact else None,
        fallback_action=artifact.fallback_action if artifact else None,
        data=asdict(artifact.window) if artifact else None,
    )


def _policy(fit: PolicyFit) -> PolicyOut:
    return PolicyOut(
        tau0=fit.thresholds.tau0,
        tau1=fit.thresholds.tau1,
        objective=fit.objective,
        certificate=_certificate(fit.certificate),
        why_not=fit.why_not,
        labels_needed=fit.labels_needed,
    )


def _abstention(abstention: Abstention) -> AbstentionOut:
    return AbstentionOut(
        tau=abstention.tau,
        risk_target=abstention.risk_target,
        certificate=_certificate(abstention.certificate),
        why_not=abstention.why_not,
        labels_needed=abstention.labels_needed,
    )


def _certificate(certificate: Certificate | None) -> CertificateOut | None:
    return None if certificate is None else CertificateOut(**asdict(certificate))
