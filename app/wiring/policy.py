"""Builds the function that resolves the policy of a question, from the calibrator, the bypass and the settings."""

import random
from dataclasses import replace
from pathlib import Path

from app.answer.answer import Resolve
from app.calibrators.status import LiveCalibrator
from app.core.corpus_stats import NO_STATS
from app.core.effective_policy import EffectivePolicy, Sampled, resolve
from app.core.question import UNSEARCHED, Question
from app.core.rules import Mandatory, compile_rules
from app.economics.bypass import WATCH, BypassWatch
from app.errors import ConfigurationError
from app.settings import groups


def resolver(settings: groups.Calibration, live_calibrator: LiveCalibrator, bypass: BypassWatch) -> Resolve:
    """The function that resolves the policy of a question when it arrives."""
    rules = _mandatory(settings.mandatory_retrieval)
    rng = random.Random()  # noqa: S311 - drawing samples, not secrets

    def resolved(question: Question, sampled: Sampled) -> EffectivePolicy:
        how = "as_asked" if question.standalone is None else question.standalone.how
        artifact = live_calibrator.matching(collection=question.collection, max_tokens=question.max_tokens)
        if how in UNSEARCHED:
            # What asks nothing cannot be out of scope.
            artifact = None
        writing, options = question.writing, question.options
        chat = question.mode == "chat"
        if writing is not None and chat:
            options = replace(options, abstain=writing.missing == "withhold")
        policy = resolve(
            options,
            artifact,
            ks=settings.ks,
            stats=NO_STATS if artifact is None else live_calibrator.stats_of(artifact),
            allow_uncertified=settings.allow_uncertified,
            revoked=artifact is not None and live_calibrator.revoked(artifact.version) is not None,
            # A few questions still use the gate, so that the bypass can notice when gating pays again.
            # It is judged by short answers alone.
            bypassed=not chat and bypass.on() and rng.random() >= WATCH,
            mandatory=rules.matches(question.text) is not None,
            chat=chat,
            sampled=sampled,
        )
        # The certificate is about questions as they were asked.
        return policy if how == "as_asked" else replace(policy, certifiable=False)

    return resolved


def _mandatory(path: Path | None) -> Mandatory:
    """The words and phrases of questions that must be answered from passages."""
    if path is None:
        return Mandatory({})
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return compile_rules(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"FETCHWISE_MANDATORY_RETRIEVAL={path} cannot be used: {error}") from error
