"""The life of a question, read top to bottom: the core chooses the next action, this loop executes it.

No vendor and no threshold is named here. `app.core` makes every decision, `app.answer.run` makes the upstream calls.
"""

import logging
from collections.abc import Callable, Sequence

from app.answer.run import Run, Upstreams
from app.core.available import Available
from app.core.effective_policy import NOT_SAMPLED, EffectivePolicy, Sampled, after_failure
from app.core.ladder import Read, Search, Step, Stop, conclude, is_final, next_step
from app.core.question import Question
from app.core.record import DecisionRecord
from app.errors import NoPassages, UpstreamError
from app.ports import SILENT, Listener, Observer

logger = logging.getLogger(__name__)

Resolve = Callable[[Question, Sampled], EffectivePolicy]
Draw = Callable[[Question], Sampled]


class Answerer:
    """Answers questions; one object for the life of the gateway.

    `resolve` returns the policy for a question, `draw` what is drawn at random for it.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        resolve: Resolve,
        *,
        draw: Draw = lambda _: NOT_SAMPLED,
        observers: Sequence[Observer] = (),
        on_observer_error: Callable[[], None] = lambda: None,
    ) -> None:
        self.upstreams = upstreams
        self.resolve = resolve
        self._draw = draw
        self._observers = observers
        self._on_observer_error = on_observer_error

    async def answer(self, question: Question, listener: Listener = SILENT) -> DecisionRecord:
        """Answer one question, or abstain; raises if neither is possible.

        The listener receives the steps, the passages, and the answer: live if it can no longer be withheld,
        otherwise as a whole at the end.
        """
        policy = self.resolve(question, self._draw(question))
        run = Run(question, self.upstreams, listener)
        vector = await run.embed() if policy.scope is not None else None
        available, steps = Available.at_first(question.text, policy.stats, vector), list[Step]()
        while True:
            step = next_step(policy, available)
            steps.append(step)
            listener.step(step, available.evidence)
            try:
                match step.action:
                    case Stop():
                        break
                    case Search():
                        available = available.found(await run.search(policy.ks[-1]))
                    case Read(k):
                        live = is_final(policy, step)
                        available = available.answered(await run.read(k, available, live=live))
            except (UpstreamError, NoPassages) as error:
                if run.streamed:
                    raise  # what was streamed is never taken back
                policy = after_failure(policy, available, error)
        reply = conclude(policy, available, step)
        if question.writing is not None:
            reply = await run.write(question.writing, available, reply)
        elif reply.text is not None and not run.streamed:
            listener.token(reply.text)
        record = DecisionRecord(question, policy, tuple(steps), available, reply, run.timings, run.searches)
        self._notify(record)
        return record

    def _notify(self, record: DecisionRecord) -> None:
        for observer in self._observers:
            try:
                observer.observe(record)
            except Exception:
                # The answer is complete and is sent.
                self._on_observer_error()
                logger.exception("%s could not record a decision; the answer is not affected", type(observer).__name__)
