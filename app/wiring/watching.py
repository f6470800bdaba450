"""Opens what runs beside the questions: the calibrator, drift, what gating costs, and learning."""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.answer.answer import Resolve
from app.calibrators.drift import DriftWatch, SignalDrift
from app.calibrators.status import LiveCalibrator, Revocations
from app.calibrators.store import ArtifactStore
from app.core.cost import Objective
from app.core.effective_policy import NOT_SAMPLED, EffectivePolicy, Sampled, resolve
from app.core.policy import AskOptions
from app.core.question import Question
from app.economics.bypass import WATCH, BypassWatch
from app.economics.view import TrafficView
from app.economics.window import TrafficWindow
from app.errors import ConfigurationError, UnknownCollection, UpstreamUnavailable
from app.learning.log import DecisionLog
from app.learning.sampling import Budget, Sampler
from app.learning.shadow import ShadowRunner
from app.ports import Documents
from app.settings import Settings
from app.storage.folder import FolderDocuments
from app.telemetry.snapshot import Load, Part, Snapshots, Sources
from app.wiring.parts import Parts, mandatory_rules


def open_live_calibrator(settings: Settings, parts: Parts, log: DecisionLog | None) -> LiveCalibrator:
    """Compares the calibrator with what runs; the wiring refreshes it."""
    return LiveCalibrator(
        ArtifactStore(settings.calibration.where),
        parts.reader,
        parts.embedder,
        collection=settings.vectors.collection,
        max_tokens=settings.reader.max_tokens,
        ks=settings.calibration.ks,
        allow_uncertified=settings.calibration.allow_uncertified,
        # Where drift only raises an alert, nothing is revoked, and what was revoked before serves again.
        revocations=Revocations(_shared(settings, log) if settings.drift.action == "revoke" else None),
    )


def _shared(settings: Settings, log: DecisionLog | None) -> Documents:
    """Documents of all gateways that write to one PostgreSQL log, or else of those that use one data directory."""
    if log is not None and str(settings.decision_log_at).startswith("postgresql"):
        return log.documents
    return FolderDocuments(settings.server.data_dir)


@dataclass(frozen=True, slots=True)
class Watching:
    """What looks at the traffic."""

    traffic: TrafficView
    bypass: BypassWatch
    signals: SignalDrift
    # None where no decisions are kept.
    drift: DriftWatch | None


def watch_calibrator(
    settings: Settings,
    live_calibrator: LiveCalibrator,
    log: DecisionLog | None,
    window: TrafficWindow,
) -> Watching:
    """Judge whether gating pays, and whether the calibrator is still true."""
    if settings.economics.objective is Objective.MONEY and settings.economics.tariff.is_free:
        raise ConfigurationError("FETCHWISE_OBJECTIVE=money needs prices: set FETCHWISE_TARIFF_PROMPT_TOKEN and others")

    def reference() -> int:
        return live_calibrator.status().fallback_k

    def deciding() -> str | None:
        status = live_calibrator.status()
        return status.version if status.matches else None

    traffic = TrafficView(
        window,
        seconds=settings.economics.window_s,
        reference=reference,
        tariff=settings.economics.tariff,
        ks=settings.calibration.ks,
    )
    bypass = BypassWatch(
        traffic,
        objective=settings.economics.objective,
        calibrator=deciding,
        enabled=settings.economics.bypass == "auto",
    )
    signals = SignalDrift(lambda: live_calibrator.serving)
    drift = None
    if log is not None:
        drift = DriftWatch(
            log.solicited,
            lambda: live_calibrator.serving,
            log.documents,
            tolerance=settings.drift.tolerance,
            delta=settings.drift.delta,
            revoke=live_calibrator.revoke if settings.drift.action == "revoke" else None,
        )
    return Watching(traffic, bypass, signals, drift)


def open_snapshots(
    settings: Settings,
    parts: Parts,
    live_calibrator: LiveCalibrator,
    watching: Watching,
    policy_of: Resolve,
    *,
    load: Callable[[], Load],
    on_pinged: Callable[[Mapping[str, Part]], None],
) -> Snapshots:
    """The snapshot that pages, `/metrics` and `/readyz` read; the wiring refreshes it."""
    plain = Question(
        "", "", settings.vectors.collection, settings.reader.max_tokens, AskOptions(settings.calibration.policy)
    )
    drift = watching.drift

    async def vectors() -> None:
        await parts.vectors.ping()
        try:
            await parts.vectors.count(settings.vectors.collection)
        except UnknownCollection as error:
            raise UpstreamUnavailable("vectors", f"{error}: fill it with `fetchwise ingest`") from error

    return Snapshots(
        Sources(
            pings={"reader": parts.reader.ping, "embedder": parts.embedder.ping, "vectors": vectors},
            calibrator=live_calibrator.status,
            policy=lambda: policy_of(plain, NOT_SAMPLED),
            bypass=watching.bypass.report,
            drift=watching.signals.report,
            evidence=lambda: drift.test.evidence if drift else None,
            load=load,
            economics=watching.traffic.report,
            on_pinged=on_pinged,
        )
    )


@dataclass(frozen=True, slots=True)
class Learning:
    """What is switched on; None where it is not."""

    # Counts what learning costs, as an observer of every decision.
    budget: Budget | None = None
    shadows: ShadowRunner | None = None


@asynccontextmanager
async def open_learning(
    settings: Settings,
    parts: Parts,
    live_calibrator: LiveCalibrator,
    log: DecisionLog | None,
    *,
    on_shadow: Callable[[str], None],
) -> AsyncIterator[Learning]:
    """Draw as the settings say; without a log nothing could be learned, so nothing is drawn."""
    if settings.learning.shadow_share and settings.log.texts == "hash":
        raise ConfigurationError(
            "FETCHWISE_SHADOW_SHARE needs the texts, or nobody could ever judge a shadow run: set it to 0, or "
            "FETCHWISE_LOG_TEXTS=full"
        )
    if log is None or not (settings.learning.explore_share or settings.learning.shadow_share):
        yield Learning()
        return
    budget = Budget(settings.learning.budget)
    shadows = ShadowRunner(
        settings.learning.shadow_share,
        budget,
        reader=parts.reader,
        embedder=parts.embedder,
        retriever=parts.vectors,
        identity=lambda: live_calibrator.running,
        on_done=log.observe,
        on_end=on_shadow,
    )
    shadows.start()
    try:
        yield Learning(budget, shadows if settings.learning.shadow_share else None)
    finally:
        await shadows.close()


def sampler(settings: Settings, learning: Learning, log: DecisionLog | None) -> Sampler:
    """Draws as the settings say; without a log nothing could be learned, so nothing is drawn."""
    if log is None:
        return Sampler()
    return Sampler(
        explore=settings.learning.explore_share,
        solicit=settings.learning.solicit_share,
        shadow=learning.shadows.draws if learning.shadows else lambda _: False,
        budget=learning.budget,
    )


def resolver(settings: Settings, live_calibrator: LiveCalibrator, bypass: BypassWatch) -> Resolve:
    """What is in force for a question, from the calibrator, the bypass and the settings."""
    rules = mandatory_rules(settings)
    rng = random.Random()  # noqa: S311 - drawing samples, not secrets

    def resolved(question: Question, sampled: Sampled) -> EffectivePolicy:
        artifact = None
        if not question.earlier:  # nothing was ever fitted on questions that continue a conversation
            artifact = live_calibrator.matching(collection=question.collection, max_tokens=question.max_tokens)
        return resolve(
            question.options,
            artifact,
            ks=settings.calibration.ks,
            allow_uncertified=settings.calibration.allow_uncertified,
            revoked=artifact is not None and live_calibrator.revoked(artifact.version) is not None,
            # A few still meet the gate, so that its return can be noticed.
            bypassed=bypass.on() and rng.random() >= WATCH,
            mandatory=rules.matches(question.text) is not None,
            sampled=sampled,
        )

    return resolved
