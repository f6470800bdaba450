"""The life of a question, read top to bottom.

    probe -> signals -> p -> decide -> (embed -> search -> read) -> settle -> record

No vendor and no threshold is named here: ports do the work, `app.decision` decides.
"""

import random
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from app.decision.policy import (
    ANSWERED,
    FULL,
    Action,
    Ask,
    Decision,
    Fallback,
    Gate,
    Reason,
    Retrieval,
    confidence_of,
    decide,
    may_withhold,
    needs_probe,
    probabilities,
    settle,
    without_passages,
)
from app.decision.record import Citation, DecisionRecord, Timings, Usage
from app.decision.signals import extract
from app.errors import NoPassages, UpstreamBadReply, UpstreamError
from app.ports import (
    Clock,
    Embedder,
    Explorer,
    Filter,
    Gatekeeper,
    Generation,
    Listener,
    Observer,
    Passage,
    Prompt,
    Reader,
    Retriever,
    Shadows,
    Stages,
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and everything its asker may choose about how it is answered."""

    text: str
    collection: str
    max_tokens: int
    ask: Ask = field(default_factory=Ask)
    where: Filter | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    # Whose question it is, where callers have keys.
    key: str | None = None


@dataclass(slots=True)
class _Journey:
    """What has happened to one question so far."""

    gate: Gate
    started: float
    spent_ms: dict[str, float] = field(default_factory=dict)
    signals: dict[str, float] = field(default_factory=dict)
    read_signals: dict[str, float] = field(default_factory=dict)
    probe: Generation | None = None
    reading: Generation | None = None
    read_usage: Usage | None = None
    passages: Sequence[Passage] = ()
    listener: Listener | None = None
    # Whether the listener has heard the answer as it came.
    heard: bool = False
    searches: int = 0
    failure: UpstreamError | None = None


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
    """Answers questions; one object for the life of the gateway."""

    def __init__(
        self,
        *,
        reader: Reader,
        embedder: Embedder,
        retriever: Retriever,
        gatekeeper: Gatekeeper,
        observers: Sequence[Observer] = (),
        explorer: Explorer | None = None,
        shadows: Shadows | None = None,
        stages: Stages = nullcontext,
        solicit_share: float = 0.0,
        dice: random.Random | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._reader = reader
        self._embedder = embedder
        self._retriever = retriever
        self._gatekeeper = gatekeeper
        self._observers = observers
        self._explorer = explorer
        self._shadows = shadows
        self._stages = stages
        self._solicit_share = solicit_share
        self._dice = dice or random.Random()  # noqa: S311 - drawing samples, not secrets
        self._clock = clock

    async def answer(self, question: Question, listener: Listener | None = None) -> DecisionRecord:
        """Answer one question, or abstain; raises only where neither would be honest.

        A listener hears the decision, the passages, and the answer: as it comes where nothing can withhold it any
        more, else as a whole once it may be given.
        """
        gate = self._gatekeeper.gate(collection=question.collection, max_tokens=question.max_tokens)
        journey = _Journey(gate, self._clock(), listener=listener)
        if needs_probe(question.ask, gate):
            await self._probe(question, journey)
        decision = decide(question.ask, gate, journey.signals)
        if self._explorer is not None:
            decision = self._explorer.consider(question.ask, decision)
        if listener is not None:
            listener.decided(decision)
        verdict = await self._carry_out(question, decision, journey)
        if listener is not None and not verdict.withheld and not journey.heard:
            listener.token(verdict.text)
        record = self._record(question, decision, verdict, journey)
        for observer in self._observers:
            observer.observe(record)
        if self._shadows is not None and record.shadowed:
            self._shadows.run(record.id, question.text)
        return record

    async def _carry_out(self, question: Question, decision: Decision, journey: _Journey) -> _Verdict:
        if decision.k == 0:
            assert journey.probe is not None
            return self._settled(question, journey, decision, _Given(0, journey.probe.text, decision.p0))
        try:
            await self._retrieve(question, decision.k, journey)
        except UpstreamError as error:
            journey.failure = error
            return await self._without_passages(question, journey, Reason.RETRIEVAL_FAILED)
        if not journey.passages:
            return await self._without_passages(question, journey, Reason.NO_PASSAGES)
        given = await self._read(question, decision.k, journey)
        if decision.escalate and given.k < FULL and settle(question.ask, journey.gate, given.confidence):
            given = await self._escalate(question, journey, given)
        return self._settled(question, journey, decision, given)

    async def _escalate(self, question: Question, journey: _Journey, given: _Given) -> _Given:
        """One passage did not convince: five may, before giving up; where they cannot be had, the one stands."""
        one = journey.passages
        try:
            await self._retrieve(question, FULL, journey)
            if journey.passages:
                return await self._read(question, FULL, journey)
        except UpstreamError as error:
            journey.failure = error
        journey.passages = one
        return given

    async def _probe(self, question: Question, journey: _Journey) -> None:
        async with self._timed("probe", journey):
            journey.probe = await self._reader.generate(Prompt(question.text), max_tokens=question.max_tokens)
        journey.signals = extract(journey.probe.tokens)

    async def _retrieve(self, question: Question, k: int, journey: _Journey) -> None:
        async with self._timed("embed", journey):
            vector = await self._embedder.embed_query(question.text)
        journey.searches += 1
        async with self._timed("search", journey):
            journey.passages = await self._retriever.search(question.collection, vector, limit=k, where=question.where)

    async def _read(self, question: Question, k: int, journey: _Journey) -> _Given:
        prompt = Prompt(question.text, tuple(journey.passages))
        if journey.listener is not None:
            journey.listener.found(journey.passages)
        async with self._timed("read", journey):
            if journey.listener is None or may_withhold(question.ask, journey.gate, k):
                journey.reading = await self._reader.generate(prompt, max_tokens=question.max_tokens)
            else:
                journey.reading = await self._read_aloud(prompt, question.max_tokens, journey, journey.listener)
        journey.read_usage = (journey.read_usage or Usage()) + _usage(journey.reading)
        journey.read_signals = extract(journey.reading.tokens)
        confidence = confidence_of(journey.gate.artifact, k, journey.read_signals)
        return _Given(k, journey.reading.text, confidence)

    async def _read_aloud(self, prompt: Prompt, max_tokens: int, journey: _Journey, listener: Listener) -> Generation:
        """Read, and let every piece be heard as it comes; giving the answer up stops it upstream."""
        async with aclosing(self._reader.stream(prompt, max_tokens=max_tokens)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Generation):
                    return piece
                if piece.text:
                    journey.heard = True
                    listener.token(piece.text)
        raise UpstreamBadReply("reader", "the stream ended before the answer did")

    async def _without_passages(self, question: Question, journey: _Journey, reason: Reason) -> _Verdict:
        """Evidence was wanted and cannot be had: the closed-book answer if it may stand, else say so."""
        may_do_without = question.ask.retrieval is not Retrieval.REQUIRED and journey.gate.artifact is not None
        if journey.probe is None and may_do_without:
            await self._probe(question, journey)
        p0, _, _ = probabilities(journey.gate.artifact, journey.signals)
        outcome = without_passages(question.ask, journey.gate, p0, found_nothing=journey.failure is None)
        if outcome is Fallback.REFUSE:
            raise journey.failure or NoPassages("no passage was found, and this question may not do without one")
        text = journey.probe.text if journey.probe else ""
        return _Verdict(0, reason, p0, text, withheld=outcome is Fallback.ABSTAIN, certified=False)

    def _settled(self, question: Question, journey: _Journey, decision: Decision, given: _Given) -> _Verdict:
        withheld = decision.withhold or settle(question.ask, journey.gate, given.confidence)
        reason = Reason.LOW_CONFIDENCE if withheld else decision.reason
        # A failed escalation is not the policy that was certified.
        certified = decision.certified and journey.failure is None
        return _Verdict(given.k, reason, given.confidence, given.text, withheld=withheld, certified=certified)

    @asynccontextmanager
    async def _timed(self, stage: str, journey: _Journey) -> AsyncIterator[None]:
        began = self._clock()
        try:
            with self._stages(stage):
                yield
        finally:
            spent = (self._clock() - began) * 1000.0
            journey.spent_ms[stage] = journey.spent_ms.get(stage, 0.0) + spent

    def _record(self, question: Question, decision: Decision, verdict: _Verdict, journey: _Journey) -> DecisionRecord:
        artifact = journey.gate.artifact
        read = journey.passages[: journey.reading.passages_read] if journey.reading else ()
        p0, _, _ = probabilities(artifact, journey.signals)
        return DecisionRecord(
            id=secrets.token_hex(12),
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
            timings=Timings(total=(self._clock() - journey.started) * 1000.0, **journey.spent_ms),
            citations=tuple(
                Citation(index, passage.id, passage.title, passage.text, passage.score)
                for index, passage in enumerate(read, start=1)
            ),
            probe_usage=_usage(journey.probe) if journey.probe else None,
            read_usage=journey.read_usage,
            retrieval_calls=journey.searches,
            explored=decision.explored,
            propensities=decision.propensities,
            shadowed=self._shadows is not None
            and self._shadows.draws(question.ask, collection=question.collection, max_tokens=question.max_tokens),
            # Drawn regardless of the answer, so that those who are asked are a fair sample of those who got one.
            solicited=not verdict.withheld and self._dice.random() < self._solicit_share,
            failure=(journey.failure.upstream, journey.failure.kind) if journey.failure else None,
            tags=question.tags,
            key=question.key,
        )


def _usage(generation: Generation) -> Usage:
    return Usage(generation.prompt_tokens, generation.completion_tokens)
