"""The gateway of the simulation: the life of a question under each schedule, on a simulated reader and retrieval."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from app.decision.schedule import Plan, Schedule
from bench.schedules.engine import Engine, Generation, StepModel
from bench.schedules.workload import Workload


@dataclass(slots=True)
class Answered:
    """What one question took; milliseconds are None where a part did not run to its end."""

    number: int
    plan: Plan | None
    arrived: float
    latency: float = 0.0
    k: int = 0
    exited: bool = False
    sent: bool = False
    calls: int = 0
    wasted_calls: int = 0
    tokens: int = 0
    wasted_tokens: int = 0
    probe_ms: float | None = None
    retrieval_ms: float | None = None
    read_ms: float | None = None


class Steering(Protocol):
    """Who says how a question is answered, None for always fetching, and hears what came of it."""

    def plan(self, number: int) -> Plan | None:
        """How to answer the question of that number."""
        ...

    def hear(self, answered: Answered) -> None:
        """A question is done."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same plan for every question."""

    chosen: Plan | None

    def plan(self, number: int) -> Plan | None:  # noqa: ARG002 - the same for all
        """That plan."""
        return self.chosen

    def hear(self, answered: Answered) -> None:
        """Nothing is learnt."""


class _Question:
    """A question on its way."""

    __slots__ = ("answered", "fetch_began", "fetched", "k", "plan", "probe_began", "read", "read_began", "read_done")

    def __init__(self, answered: Answered) -> None:
        self.answered, self.plan = answered, answered.plan
        # None until it is decided how many passages to read.
        self.k: int | None = None
        self.fetched = self.read_done = False
        self.read: Generation | None = None
        self.probe_began = self.fetch_began = self.read_began = 0.0


@dataclass
class Simulation:
    """Runs a workload to its end: at given times of arrival, or with so many at a time and no pause."""

    workload: Workload
    steps: StepModel
    steering: Steering
    # Retrieval is a delay, behind this many servers.
    servers: int = 64
    # Tokens of a question's second prompt that the reader still knows from its first. None by default: the prompts
    # begin differently, so nothing can be kept.
    cached: int = 0
    done: list[Answered] = field(default_factory=list)

    def run(self, arrivals: list[float] | None = None, *, at_a_time: int = 1) -> list[Answered]:
        """Answer every question; in the order in which they were done."""
        self._engine = Engine(self.steps)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = 0
        self._now = 0.0
        self._free = [0.0] * self.servers
        self._next: Iterator[int] = iter(range(len(self.workload)))
        self._open = arrivals is None
        if arrivals is None:
            for _ in range(at_a_time):
                self._arrive_next()
        else:
            for number, at in enumerate(arrivals):
                self._at(at, lambda number=number: self._arrive(number))
        engine, heap = self._engine, self._heap
        while True:
            if heap and heap[0][0] < engine.ends:
                self._now, _, act = heappop(heap)
                act()
            elif engine.ends < float("inf"):
                self._now = engine.ends
                engine.finish()
            else:
                return self.done

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._ticket += 1
        heappush(self._heap, (when, self._ticket, act))

    def _arrive_next(self) -> None:
        number = next(self._next, None)
        if number is not None:
            self._arrive(number)

    def _arrive(self, number: int) -> None:
        plan, work = self.steering.plan(number), self.workload
        q = _Question(Answered(number, plan, self._now))
        if plan is None:
            q.k = work.reference
            self._fetch(q, q.k)
        elif plan.pregate and work.sent[number]:
            q.k, q.answered.sent = work.sent[number], True
            self._fetch(q, q.k)
        else:
            if plan.schedule is not Schedule.SERIAL:
                self._fetch(q, 5)
            if plan.pregate:
                self._at(self._now + work.embed_ms, lambda: self._probe(q))
            else:
                self._probe(q)

    def _fetch(self, q: _Question, k: int) -> None:
        work = self.workload
        took = work.retrieval_ms[k]
        if q.plan is not None and q.plan.pregate and q.plan.schedule is Schedule.SERIAL and not q.answered.sent:
            took -= work.embed_ms  # the embedding is at hand
        q.answered.calls += 1
        q.fetch_began = self._now
        ready = max(self._now, self._free[0]) + took
        heapreplace(self._free, ready)
        self._at(ready, lambda: self._on_fetched(q))

    def _probe(self, q: _Question) -> None:
        work, number = self.workload, q.answered.number
        q.probe_began = self._now
        stop_at = work.exit_at[number] if q.plan is not None and q.plan.exits else None
        answer = work.tokens[0][number]
        q.answered.exited = stop_at is not None and stop_at < answer

        def ended() -> None:
            self._on_probe(q, stop_at if q.answered.exited and stop_at is not None else answer)

        self._engine.submit(Generation(work.prompts[0][number], answer, ended, stop_at=stop_at), self._now)

    def _on_probe(self, q: _Question, emitted: int) -> None:
        work, number, answered = self.workload, q.answered.number, q.answered
        spent = work.prompts[0][number] + emitted
        answered.tokens += spent
        k = work.exit_k[number] if answered.exited else work.k[number]
        q.k = k
        if not answered.exited:
            answered.probe_ms = self._now - q.probe_began
        if k:
            answered.wasted_tokens += spent
        assert q.plan is not None
        if k == 0:
            answered.wasted_calls = answered.calls
            self._give_up_read(q)
            self._done(q)
        elif q.plan.schedule is Schedule.SERIAL:
            self._fetch(q, k)
        elif q.plan.schedule is Schedule.RACE and k == 5 and q.read is not None:
            if q.read_done:
                self._done(q)
        else:
            self._give_up_read(q)
            if q.fetched:
                self._read(q, k)

    def _on_fetched(self, q: _Question) -> None:
        q.fetched = True
        q.answered.retrieval_ms = self._now - q.fetch_began
        if q.k is None:
            if q.plan is not None and q.plan.schedule is Schedule.RACE:
                self._read(q, 5)
        elif q.k:
            self._read(q, q.k)

    def _read(self, q: _Question, k: int) -> None:
        work, number = self.workload, q.answered.number
        q.read_began = self._now
        prompt, answer = work.prompts[k][number], work.tokens[k][number]
        known = self.cached if q.plan is not None and not q.answered.sent else 0

        def ended() -> None:
            q.answered.tokens += prompt - known + answer
            q.answered.read_ms = self._now - q.read_began
            q.read_done = True
            if q.k is not None:
                self._done(q)

        q.read = Generation(prompt, answer, ended, cached=known)
        self._engine.submit(q.read, self._now)

    def _give_up_read(self, q: _Question) -> None:
        if q.read is None:
            return
        spent = self._engine.cancel(q.read)
        q.answered.tokens += spent
        # One that was complete, and counted then, is as much in vain.
        q.answered.wasted_tokens += spent if not q.read_done else q.read.prompt - q.read.cached + q.read.answer
        q.answered.read_ms = None
        q.read = None

    def _done(self, q: _Question) -> None:
        answered = q.answered
        assert q.k is not None
        answered.k = q.k
        answered.latency = self._now - answered.arrived
        self.done.append(answered)
        self.steering.hear(answered)
        if self._open:
            self._arrive_next()
