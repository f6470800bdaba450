"""What operators count about the decision log: records it had to drop, and verdicts that came in."""

from prometheus_client import CollectorRegistry, Counter

from app.decision.feedback import Judged
from app.decision.policy import ANSWERED


class LogMetrics:
    """Counters, every label of which is there from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._dropped = Counter(
            "fetchwise_log_dropped", "Decisions that the log could not keep and dropped.", registry=registry
        )
        self._feedback = Counter(
            "fetchwise_feedback",
            "Verdicts on answers, by what was done; a repeated one is not counted, a changed one is.",
            ("correct", "action"),
            registry=registry,
        )
        self._shadows = Counter(
            "fetchwise_shadow_runs",
            "Questions drawn to be asked again at every k, by whether they were.",
            ("end",),
            registry=registry,
        )
        for end in ("done", "lost"):
            self._shadows.labels(end)
        for correct in ("true", "false"):
            for action in ANSWERED.values():
                self._feedback.labels(correct, action.value)

    def dropped(self, count: int) -> None:
        """Decisions were lost."""
        self._dropped.inc(count)

    def shadow(self, end: str) -> None:
        """A shadow run is done, or lost."""
        self._shadows.labels(end).inc()

    def feedback(self, judged: Judged) -> None:
        """A verdict came in; references to an abstention are none."""
        if judged.correct is None:
            return
        self._feedback.labels(str(judged.correct).lower(), judged.action.value).inc()
