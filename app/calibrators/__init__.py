"""Published calibrators: the folder, which one serves, whether it still holds.

`learning` and the layers above it may import it.
"""

from app.calibrators.drift import AskedAnswers, DriftWatch
from app.calibrators.status import LiveCalibrator, Revocations
from app.calibrators.store import ArtifactStore
from app.ports import Documents, Embedder, Reader
from app.settings import Settings, groups


def open_live_calibrator(
    settings: Settings, reader: Reader, embedder: Embedder, documents: Documents
) -> LiveCalibrator:
    """Compares the published calibrator with these parts; it knows nothing before its first refresh. Blocks."""
    return LiveCalibrator(
        ArtifactStore(settings.calibration.where),
        reader,
        embedder,
        collection=settings.vectors.collection,
        max_tokens=settings.reader.max_tokens,
        ks=settings.calibration.ks,
        allow_uncertified=settings.calibration.allow_uncertified,
        # Where drift only raises an alert, nothing is revoked, and what was revoked before serves again.
        revocations=Revocations(documents if settings.drift.action == "revoke" else None),
    )


def open_drift(
    settings: groups.Drift, live_calibrator: LiveCalibrator, asked: AskedAnswers, documents: Documents
) -> DriftWatch:
    """Tests the calibrator that serves on feedback; it reads nothing before its first refresh."""
    return DriftWatch(
        asked,
        lambda: live_calibrator.serving,
        documents,
        tolerance=settings.tolerance,
        delta=settings.delta,
        wait=3600.0 * settings.wait_hours,
        revoke=live_calibrator.revoke if settings.action == "revoke" else None,
    )
