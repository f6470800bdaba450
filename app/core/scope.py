"""Whether a question is like those that a calibrator was fitted on; outside, no probability means anything.

Each statistic has a floor with a known rate of false alarms on the collected questions; together they share `alpha`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.evidence import NEARNESS, SCRIPT


@dataclass(frozen=True, slots=True)
class Scope:
    """The floors of the scope test, and the writing systems of the collected questions."""

    alpha: float
    # A question with evidence strictly below its floor is out of scope.
    floors: Mapping[str, float]
    # The floor of nearness where no search is allowed: it then has all of alpha.
    nearness_alone: float | None
    scripts: tuple[str, ...]
    # The population, in words for the receipt.
    covers: str

    def alarm(self, evidence: Mapping[str, float], *, may_search: bool) -> str | None:
        """The evidence that puts the question out of scope; None if nothing does so far."""
        for name in evidence:
            if name.startswith(SCRIPT) and name.removeprefix(SCRIPT) not in self.scripts:
                return name
        if not may_search and self.nearness_alone is not None:
            near = evidence.get(NEARNESS)
            return NEARNESS if near is not None and near < self.nearness_alone else None
        return next((name for name, floor in self.floors.items() if name in evidence and evidence[name] < floor), None)

    def complete(self, evidence: Mapping[str, float]) -> bool:
        """Whether the question's nearness is known where the test needs it; without, nothing is certified.

        Search evidence is tested where there was a search: it is all there or not at all.
        """
        return NEARNESS not in self.floors or NEARNESS in evidence
