"""The life of a question, read top to bottom.

    (rule ─► embed ─► foresee) ─► probe ─► signals ─► p ─► decide ─► (embed ─► search ─► read) ─► settle ─► record

No vendor and no threshold is named here: ports do the work, `app.decision` decides, `app.journey` keeps the clock.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from app.decision.exits import exit_now, watched_lengths
from app.decision.forecast import WATCH, Plan, Schedule
from app.decision.mandatory import Mandatory
from app.decision.policy import (
    ANSWERED,
    FULL,
    Action,
    Decision,
    Fallback,
    Gate,
    Policy,
    Reason,
    Retrieval,
    confidence_of,
    decide,
    most_passages,
    needs_probe,
    settle,
    without_passages,
)
from app.decision.pregate import consider, insist, may_insist, wants_embedding
from app.decision.record import Citation, DecisionRecord
from app.errors import NoPassages, UpstreamError
from app.journey import Journey, Means
from app.ports import Clock, Embedder, Explorer, Gatekeeper, Listener, Observer, Reader, Retriever, Shadows, Stages
from app.question import Question

SERIAL = Plan(Schedule.SERIAL)
_NO_RULES = Mandatory({})


@dataclass(frozen=True, slots=True)
class _Given:
    """An answer that could be given: how many passages it was read from, and how sure it is."""

    k: int
    text: str
    confidence: float | None


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
    """Answers questions; one object for the life of the gateway. `plan` says at any time how they are answered."""

    def __init__(
        self,
        *,
        reader: Reader,
        embedder: Embedder,
        retriever: Retriever,
        gatekeeper: Gatekeeper,
        observers: Sequence[Observer] = (),
        plan: Callable[[], Plan] = lambda: SERIAL,
        mandatory: Mandatory = _NO_RULES,
        explorer: Explorer | None = None,
        shadows: Shadows | None = None,
        stages: Stages = nullcontext,
        solicit_share: float = 0.0,
        dice: random.Random | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._means = Means(reader, embedder, retriever, stages, clock)
        self._gatekeeper = gatekeeper
        self._observers = observers
        self._plan = plan
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
        plan = self._plan()
        journey = Journey(question, self._gate(question, plan), self._means, listener)
        try:
            decision = await self._decide(journey, plan)
            if self._explorer is not None:
                decision = self._explorer.consider(question.ask, decision)
            if listener is not None:
                listener.decided(decision)
            verdict = await self._carry_out(decision, journey)
            if listener is not None and not verdict.withheld and not journey.heard:
                listener.token(verdict.text)
            record = self._record(decision, verdict, journey)
        finally:
            journey.end()
        for observer in self._observers:
            observer.observe(record)
        if self._shadows is not None and record.shadowed:
            self._shadows.run(record.id, question.text)
        return record

    def _gate(self, question: Question, plan: Plan) -> Gate:
        if question.earlier:
            # Nothing was ever fitted on questions that continue a conversation.
            return Gate()
        gate = self._gatekeeper.gate(collection=question.collection, max_tokens=question.max_tokens)
        if question.ask.policy is Policy.GRADED:
            gate = gate.by(plan.means)
        # A few still meet the gate, so that its return can be noticed.
        return replace(gate, bypassed=True) if plan.bypass and self._dice.random() >= WATCH else gate

    async def _decide(self, journey: Journey, plan: Plan) -> Decision:
        """Choose the number of passages, as early as it can be known."""
        question, gate = journey.question, journey.gate
        ask = question.ask
        foresighted = wants_embedding(ask, gate)
        if self._mandatory.matches(question.text) is not None and may_insist(ask):
            return insist(ask, gate, question.text, await self._vector(journey) if foresighted else None)
        vector = await self._vector(journey) if foresighted else None
        if vector is not None and (foreseen := consider(ask, gate, question.text, vector)) is not None:
            return foreseen
        if not needs_probe(ask, gate):
            return decide(ask, gate, {})
        if plan.schedule is not Schedule.SERIAL and (most := most_passages(ask, gate)):
            journey.begin(plan.schedule, most)
        if lengths := watched_lengths(ask, gate):
            hopeless = await journey.ask_watched(lengths, lambda n, signals: exit_now(ask, gate, n, signals))
            if hopeless is not None:
                return hopeless
        else:
            await journey.ask()
        return decide(ask, gate, journey.signals, watched=vector is not None or not foresighted)

    async def _vector(self, journey: Journey) -> Sequence[float] | None:
        """The question's embedding; None where it cannot be had."""
        try:
            return await journey.embed()
        except UpstreamError:
            # Told when the passages are asked for, if they are: the probe can do without.
            return None

    async def _carry_out(self, decision: Decision, journey: Journey) -> _Verdict:
        if decision.k == 0:
            assert journey.probe is not None
            return _settled(journey, decision, _Given(0, journey.probe.text, decision.p0))
        try:
            await journey.retrieve(decision.k)
        except UpstreamError as error:
            journey.failure = error
            return await self._without_passages(journey, Reason.RETRIEVAL_FAILED)
        if not journey.passages:
            return await self._without_passages(journey, Reason.NO_PASSAGES)
        given = await self._read(journey, decision.k)
        if decision.escalate and given.k < FULL and settle(journey.question.ask, journey.gate, given.confidence):
            given = await self._escalate(journey, given)
        return _settled(journey, decision, given)

    async def _read(self, journey: Journey, k: int) -> _Given:
        reading = await journey.read(k)
        return _Given(k, reading.text, confidence_of(journey.gate.artifact, k, journey.read_signals))

    async def _escalate(self, journey: Journey, given: _Given) -> _Given:
        """One passage did not convince: five may, before giving up; where they cannot be had, the one stands."""
        one = journey.passages
        try:
            await journey.retrieve(FULL)
            if journey.passages:
                return await self._read(journey, FULL)
        except UpstreamError as error:
            journey.failure = error
        journey.passages = one
        return given

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
        # By the whole probe where there was one, also where it was only asked for want of passages.
        p0 = decision.p0 if journey.probe is None else confidence_of(artifact, 0, journey.signals)
        return DecisionRecord(
            id=question.id,
            question=question.text,
            collection=question.collection,
            policy=question.ask.policy,
            retrieval=question.ask.retrieval,
            abstain=question.ask.abstain,
            filtered=question.ask.filtered,
            answer=None if verdict.withheld else verdict.text,
            action=Action.ABSTAIN if verdict.withheld else ANSWERED[verdict.k],
            k=verdict.k,
            reason=verdict.reason,
            confidence=verdict.confidence,
            p_closed_book=p0,
            signals=journey.signals,
            read_signals=journey.read_signals,
            thresholds=decision.thresholds,
            tau_abstain=journey.gate.tau_abstain(),
            calibrator=artifact.version if artifact else None,
            certified=verdict.certified,
            timings=journey.timings,
            citations=tuple(
                Citation(index, passage.id, passage.title, passage.text, passage.score)
                for index, passage in enumerate(read, start=1)
            ),
            probe_usage=journey.probe_usage,
            read_usage=journey.read_usage,
            wasted_usage=journey.wasted,
            schedule=journey.schedule.value,
            retrieval_calls=journey.searches,
            passages_fetched=journey.fetched,
            reads=journey.reads,
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


def _settled(journey: Journey, decision: Decision, given: _Given) -> _Verdict:
    withheld = decision.withhold or settle(journey.question.ask, journey.gate, given.confidence)
    reason = Reason.LOW_CONFIDENCE if withheld else decision.reason
    # A failed escalation is not the policy that was certified.
    certified = decision.certified and journey.failure is None
    return _Verdict(given.k, reason, given.confidence, given.text, withheld=withheld, certified=certified)
