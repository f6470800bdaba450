"""Rates by tag, and their intervals."""

import random

from app.certify.audit import audit
from app.certify.intervals import Interval, wilson
from app.core.feedback import AuditRow


def test_rates_by_tag() -> None:
    """Each value of each tag has its own skip, abstain and error rates; a row without tags counts only in the total."""
    rows = [
        AuditRow({"lang": "en", "team": "a"}, "k0", 0, correct=True, solicited=True),
        AuditRow({"lang": "en"}, "k5", 5, correct=False, solicited=True),
        AuditRow({"lang": "en"}, "k1", 1),
        AuditRow({"lang": "de"}, "abstain", 0),
        AuditRow({}, "k1", 1, correct=False, solicited=True),
    ]
    found = audit(rows)
    english, german = found.tags["lang"]["en"], found.tags["lang"]["de"]
    assert (english.skip, english.abstain, english.error) == (wilson(1, 3), wilson(0, 3), wilson(1, 2))
    assert (german.skip, german.abstain, german.error) == (wilson(1, 1), wilson(1, 1), wilson(0, 0))
    assert list(found.tags["team"]) == ["a"]
    overall = found.overall
    assert (overall.skip, overall.abstain, overall.error) == (wilson(2, 5), wilson(1, 5), wilson(2, 3))


def test_only_answers_drawn_at_random_tell_the_error_rate() -> None:
    """Unsolicited feedback, and feedback on withheld answers, are left out of it."""
    rows = [
        AuditRow({}, "k0", 0, correct=False, solicited=False),
        AuditRow({}, "abstain", 1, correct=False, solicited=True),
        AuditRow({}, "k0", 0, correct=None, solicited=True),
        AuditRow({}, "k0", 0, correct=True, solicited=True),
    ]
    assert audit(rows).overall.error == wilson(0, 1)


def test_the_commonest_values_are_shown() -> None:
    """A tag with many values does not make a long report, which says how many it omits."""
    rows = [AuditRow({"user": f"u{n:03}"}, "k0", 0) for n in range(100)]
    rows += [AuditRow({"user": "u070"}, "k0", 0)] * 2
    found = audit(rows, most=3)
    assert list(found.tags["user"]) == ["u070", "u000", "u001"]
    assert found.omitted_values == {"user": 97}


def test_a_real_difference_shows() -> None:
    """The intervals of two groups do not overlap if one is wrong twice as often."""
    chance = random.Random(40)
    rows = [
        AuditRow({"group": group}, "k0", 0, correct=chance.random() > wrong, solicited=True)
        for group, wrong in (("a", 0.2), ("b", 0.4))
        for _ in range(400)
    ]
    groups = audit(rows).tags["group"]
    assert groups["a"].error.high is not None
    assert groups["b"].error.low is not None
    assert groups["a"].error.high < groups["b"].error.low


def test_nothing_logged() -> None:
    """An empty log has no rates and no groups."""
    found = audit([])
    assert found.overall.skip == Interval(None, None, None, 0)
    assert found.tags == {}
