"""A description of the calibrator folder, for `GET /calibrators` and `fetchwise calibrators list --json`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from app.calibrators.store import ArtifactStore, Change
from app.core.artifact import (
    Abstention,
    Artifact,
    Certificate,
    DataWindow,
    Identity,
    LabelsNeeded,
    LadderFit,
    PolicyFit,
)
from app.core.cost import Objective
from app.errors import ArtifactError

_CHANGES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LadderSummary:
    """The ladder without its heads, which are long."""

    t: float
    goal: Literal["gain", "save"]
    objective: Objective
    certificate: Certificate | None
    uncertified_reason: str | None
    labels_needed: LabelsNeeded | None

    @classmethod
    def of(cls, fit: LadderFit | None) -> "LadderSummary | None":
        """What a list shows of a ladder."""
        if fit is None:
            return None
        return cls(fit.t, fit.goal, fit.objective, fit.certificate, fit.uncertified_reason, fit.labels_needed)


@dataclass(frozen=True, slots=True)
class CalibratorVersion:
    """One calibrator; if its file cannot be read, only `version` and `problem` are set."""

    version: str
    current: bool
    serving: bool
    problem: str
    certified: bool | None = None
    created: str | None = None
    identity: Identity | None = None
    # None also for a version without a ladder, which serves `graded`.
    ladder: LadderSummary | None = None
    policies: Mapping[str, PolicyFit] | None = None
    abstention: Abstention | None = None
    fallback_k: int | None = None
    data_window: DataWindow | None = None


@dataclass(frozen=True, slots=True)
class CalibratorList:
    """The folder of calibrators as this worker sees it."""

    current: str | None
    serving: str | None
    problem: str
    versions: tuple[CalibratorVersion, ...]
    changes: tuple[Change, ...]


def list_calibrators(
    store: ArtifactStore,
    most: int,
    *,
    serving: str | None = None,
    problem: str = "",
    problem_of: Callable[[Artifact], str] = lambda _: "",
) -> CalibratorList:
    """Describe the folder; `problem_of` says why a valid artifact may not serve here. Blocks."""
    current, changes = None, []
    try:
        current = store.current()
        changes = store.history()[: -_CHANGES_SHOWN - 1 : -1]
    except ArtifactError as error:
        problem = problem or str(error)

    def described(version: str, found: Artifact | ArtifactError) -> CalibratorVersion:
        is_current, is_serving = version == current, version == serving
        if isinstance(found, ArtifactError):
            return CalibratorVersion(version, is_current, is_serving, str(found))
        return CalibratorVersion(
            version,
            is_current,
            is_serving,
            problem_of(found),
            certified=found.certified,
            created=found.created,
            identity=found.identity,
            ladder=LadderSummary.of(found.ladder),
            policies=found.policies,
            abstention=found.abstention,
            fallback_k=found.fallback_k,
            data_window=found.data_window,
        )

    versions = tuple(described(version, found) for version, found in store.newest(most))
    return CalibratorList(current, serving, problem, versions, tuple(changes))
