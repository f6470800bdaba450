"""Putting an artifact where the gateway finds it: whole or not at all, and served only if it is not worse.

`DIR/<version>.json` is immutable; `DIR/CURRENT` names the version that is served. Both appear by rename.
`DIR/HISTORY` has a line for each change of CURRENT.
"""

from dataclasses import dataclass
from pathlib import Path

from app.adapters.artifact_store import ArtifactStore
from app.decision.artifact import Artifact, mismatches
from app.errors import ArtifactError, DataError
from app.refit.fit import predict_many
from app.refit.ledger import Ledger
from app.refit.split import Test, units


@dataclass(frozen=True, slots=True)
class Published:
    """Where an artifact went, and whether it is served now, or why not."""

    path: Path
    current: bool
    why: str


def publish(
    artifact: Artifact,
    directory: Path,
    *,
    test: Test,
    epsilon: float,
    force: bool = False,
) -> Published:
    """Write the artifact, and make it CURRENT unless it is worse than the one that is served.

    Worse is: uncertified where that one is certified; or less accurate by more than epsilon on the new test split,
    each as the gateway would serve it. A group's split never changes, so the old one has not learned from it either.
    An artifact for another identity replaces nothing and is refused, and one without identity never becomes
    CURRENT, for the gateway could not serve it. `force` overrules all but the last.
    """
    store = ArtifactStore(directory)
    served, unreadable = _served(store)
    if served is not None and artifact.identity is not None and served.identity is not None and not force:
        differing = mismatches(served.identity, artifact.identity)
        if differing:
            raise DataError(
                f"{artifact.window.source or 'the table'}:1: collected with another system than {directory} serves "
                f"({'; '.join(differing)}): publish to another directory, or --force; nothing was published"
            )
    why_not = None if force or served is None else _worse(artifact, served, test, epsilon)
    if artifact.identity is None:
        why_not = "the table has no identity line, so nothing that runs can match it"
    path = store.publish(artifact)
    if why_not is not None:
        return Published(path, current=False, why=why_not)
    store.promote(artifact.version, by="refit")
    return Published(path, current=True, why=unreadable or ("forced" if force else "not worse than what was served"))


def _served(store: ArtifactStore) -> tuple[Artifact | None, str]:
    try:
        version = store.current()
        return (store.load(version), "") if version is not None else (None, "nothing was served before")
    except ArtifactError as error:
        return None, f"what was served could not be read ({error})"


def _worse(new: Artifact, old: Artifact, test: Test, epsilon: float) -> str | None:
    if _certified(old) and not _certified(new):
        return f"{old.version} is certified and this one is not"
    before, after = _served_accuracy(old, test), _served_accuracy(new, test)
    if after < before - epsilon:
        return f"on the test split {old.version} is right {before:.3f} of the time and this one {after:.3f}"
    return None


def _served_accuracy(artifact: Artifact, test: Test) -> float:
    """Accuracy on test of what the gateway would serve: the certified graded policy, or else the fallback action."""
    thresholds = artifact.policies["graded"].thresholds if _certified(artifact) else None
    p = predict_many(artifact.p0, test.outcomes.signals[0], len(test.outcomes))
    ledger = Ledger(test, p, units(test.outcomes), {})
    return ledger.mean(ledger.right(ledger.serve(thresholds, artifact.fallback_action)))


def _certified(artifact: Artifact) -> bool:
    fit = artifact.policies.get("graded")
    return fit is not None and fit.certificate is not None
