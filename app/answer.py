"""The life of a question, read top to bottom.

    (rule) ─► probe ─► signals ─► p ─► decide ─► (embed ─► search ─► read) ─► settle ─► record

No vendor and no threshold is named here: ports do the work, `app.decision` decides, `app.journey` keeps the clock.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from app.decision.bypass import WATCH
from app.decision.mandatory import Mandatory
from app.decision.policy import (
    Decision,
    Fallback,
    Gate,
    Reason,
    Retrieval,
    confidence_of,
    decide,
    decide_mandatory,
    mandatory_applies,
    needs_probe,
    settle,
    without_passages,
)
from app.decision.record import DecisionRecord
from app.errors import NoPassages, UpstreamError
from app.explore import DiceExplorer
from app.journey import Journey, Upstreams, usage_of
from app.ports import Clock, Embedder, Gatekeeper, Listener, Observer, Reader, Retriever, Stages
from app.question import Question
from app.shadow import ShadowRunner

_NO_RULES = Mandatory({})


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What the question comes to."""

    k: int
    reason: Reason
    confidence: float | None
    text: str
    withheld: bool
    certified: bool


class Answerer:
    """Answers questions; one object for the life of the gateway. `bypassed`: whether most skip the gate now."""

    def __init__(
        self,
        *,
        reader: Reader,
        embedder: Embedder,
        retriever: Retriever,
        gatekeeper: Gatekeeper,
        observers: Sequence[Observer] = (),
        bypassed: Callable[[], bool] = lambda: False,
        mandatory: Mandatory = _NO_RULES,
        explorer: DiceExplorer | None = None,
        shadows: ShadowRunner | None = None,
        stages: Stages = nullcontext,
        solicit_share: float = 0.0,
        dice: random.Random | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._upstreams = Upstreams(reader, embedder, retriever, stages, clock)
        self._gatekeeper = gatekeeper
        self._observers = observers
        self._bypassed = bypassed
        self._mandatory = mandatory
        self._explorer = explorer
        self._shadows = shadows
        self._solicit_share = solicit_share
        self._dice = dice or random.Random()  # noqa: S311 - drawing samples, not secrets

    async def answer(self, question: Question, listener: Listener | None = None) -> DecisionRecord:
        """Answer one question, or abstain; raises only where neither would be honest.

        A listener hears the decision, the passages, and the answer: as it comes where nothing can withhold it any
        more, else as a whole once it may be given.
        """
        journey = Journey(question, self._gate(question), self._upstreams, listener)
        decision = await self._decide(journey)
        if self._explorer is not None:
            decision = self._explorer.consider(question.ask, decision)
        if listener is not None:
            listener.decided(decision)
        verdict = await self._carry_out(decision, journey)
        if listener is not None and not verdict.withheld and not journey.heard:
            listener.token(verdict.text)
        record = self._record(decision, verdict, journey)
        for observer in self._observers:
            observer.observe(record)
        if self._shadows is not None and record.shadowed:
            self._shadows.run(record.id, question.text)
        return record

    def _gate(self, question: Question) -> Gate:
        gate = self._gatekeeper.gate(collection=question.collection, max_tokens=question.max_tokens)
        if question.earlier:
            # Nothing was ever fitted on questions that continue a conversation.
            return Gate(ks=gate.ks)
        # A few still meet the gate, so that its return can be noticed.
        return replace(gate, bypassed=True) if self._bypassed() and self._dice.random() >= WATCH else gate

    async def _decide(self, journey: Journey) -> Decision:
        """Choose the number of passages, with a probe only where it can change anything."""
        question, gate = journey.question, journey.gate
        if mandatory_applies(question.ask) and self._mandatory.matches(question.text) is not None:
            return decide_mandatory(gate)
        if needs_probe(question.ask, gate):
            await journey.ask()
        return decide(question.ask, gate, journey.signals)

    async def _carry_out(self, decision: Decision, journey: Journey) -> _Verdict:
        if decision.k == 0:
            assert journey.probe is not None
            return _settled(journey, decision, journey.probe.text, decision.p0)
        try:
            await journey.retrieve(decision.k)
        except UpstreamError as error:
            journey.failure = error
            return await self._without_passages(journey, Reason.RETRIEVAL_FAILED)
        if not journey.passages:
            return await self._without_passages(journey, Reason.NO_PASSAGES)
        reading = await journey.read(decision.k)
        confidence = confidence_of(journey.gate.artifact, decision.k, journey.read_signals)
        return _settled(journey, decision, reading.text, confidence)

    async def _without_passages(self, journey: Journey, reason: Reason) -> _Verdict:
        """Evidence was wanted and cannot be had: the closed-book answer if it may stand, else say so."""
        ask, gate = journey.question.ask, journey.gate
        may_do_without = ask.retrieval is not Retrieval.REQUIRED and gate.artifact is not None
        if journey.probe is None and may_do_without:
            await journey.ask()
        p0 = confidence_of(gate.artifact, 0, journey.signals)
        outcome = without_passages(ask, gate, p0, found_nothing=journey.failure is None)
        if outcome is Fallback.REFUSE:
            raise journey.failure or NoPassages("no passage was found, and this question may not do without one")
        text = journey.probe.text if journey.probe else ""
        return _Verdict(0, reason, p0, text, withheld=outcome is Fallback.ABSTAIN, certified=False)

    def _record(self, decision: Decision, verdict: _Verdict, journey: Journey) -> DecisionRecord:
        question, artifact = journey.question, journey.gate.artifact
        read = journey.passages[: journey.reading.passages_read] if journey.reading else ()
        given = journey.reading if verdict.k else journey.probe
        return DecisionRecord(
            id=question.id,
            question=question.text,
            collection=question.collection,
            policy=question.ask.policy,
            retrieval=question.ask.retrieval,
            abstain=question.ask.abstain,
            filtered=question.ask.filtered,
            answer=None if verdict.withheld else verdict.text,
            k=verdict.k,
            reason=verdict.reason,
            confidence=verdict.confidence,
            # Also of a probe that was only asked for want of passages.
            p_closed_book=confidence_of(artifact, 0, journey.signals),
            signals=journey.signals,
            read_signals=journey.read_signals,
            thresholds=decision.thresholds,
            tau_abstain=journey.gate.tau_abstain(),
            calibrator=artifact.version if artifact else None,
            certified=verdict.certified,
            timings=journey.timings,
            citations=tuple(read),
            probe_usage=usage_of(journey.probe),
            read_usage=usage_of(journey.reading),
            retrieval_calls=journey.searches,
            explored=decision.explored,
            propensities=decision.propensities,
            shadowed=self._shadows is not None
            and question.may_judge
            and not question.earlier
            and self._shadows.draws(question.ask, collection=question.collection, max_tokens=question.max_tokens),
            # Drawn regardless of the answer, so that those who are asked are a fair sample of those who got one.
            solicited=question.may_judge and not verdict.withheld and self._dice.random() < self._solicit_share,
            failure=(journey.failure.upstream, journey.failure.kind) if journey.failure else None,
            tags=question.tags,
            key=question.key,
            cut_off=given is not None and given.cut_off,
        )


def _settled(journey: Journey, decision: Decision, text: str, confidence: float | None) -> _Verdict:
    withheld = settle(journey.question.ask, journey.gate, confidence)
    reason = Reason.LOW_CONFIDENCE if withheld else decision.reason
    return _Verdict(decision.k, reason, confidence, text, withheld=withheld, certified=decision.certified)
