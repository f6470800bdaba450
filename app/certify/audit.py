"""Rates by tag: whether some group of questions is skipped, withheld or answered wrongly more often than others."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.certify.intervals import Interval, wilson
from app.core.feedback import AuditRow
from app.core.policy import ABSTAIN


@dataclass(frozen=True, slots=True)
class GroupRates:
    """What happened to one group of questions.

    `skip`: answered or withheld without reading a passage. `abstain`: withheld. `error`: wrong, among the answers that
    were drawn at random for feedback and judged. Other feedback is not counted: its senders chose to give it.
    """

    skip: Interval
    abstain: Interval
    error: Interval


@dataclass(frozen=True, slots=True)
class Audit:
    """The rates of all questions, and of each tag's values by size; `omitted_values` counts those not shown."""

    overall: GroupRates
    tags: Mapping[str, Mapping[str, GroupRates]]
    omitted_values: Mapping[str, int]


@dataclass(slots=True)
class _Tally:
    answers: int = 0
    skipped: int = 0
    withheld: int = 0
    judged: int = 0
    wrong: int = 0

    def add(self, row: AuditRow) -> None:
        withheld = row.action == ABSTAIN
        self.answers += 1
        self.skipped += row.k == 0
        self.withheld += withheld
        if row.solicited and row.correct is not None and not withheld:
            self.judged += 1
            self.wrong += not row.correct

    def rates(self) -> GroupRates:
        return GroupRates(
            skip=wilson(self.skipped, self.answers),
            abstain=wilson(self.withheld, self.answers),
            error=wilson(self.wrong, self.judged),
        )


def audit(rows: Iterable[AuditRow], *, most: int = 50) -> Audit:
    """Compare groups. Only the `most` common values of each tag are kept: callers can invent any number."""
    overall = _Tally()
    by_tag: dict[str, dict[str, _Tally]] = defaultdict(lambda: defaultdict(_Tally))
    for row in rows:
        overall.add(row)
        for tag, value in row.tags.items():
            by_tag[tag][value].add(row)
    tags, omitted_values = {}, {}
    for tag, values in sorted(by_tag.items()):
        ranked = sorted(values.items(), key=lambda item: (-item[1].answers, item[0]))
        tags[tag] = {value: tally.rates() for value, tally in ranked[:most]}
        omitted_values[tag] = max(0, len(ranked) - most)
    return Audit(overall.rates(), tags, omitted_values)
