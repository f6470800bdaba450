"""Conversations about the facts of questions.jsonl: `python -m demo.conversations` writes conversations.jsonl.

Each row is a follow-up with everything said before it, the question that it means, and the passage that answers that.
It needs only the committed questions, and the same questions give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
CONVERSATIONS = 64


class Wording(NamedTuple):
    """How a relation is asked about a subject, about something just named, and by its name alone."""

    full: str
    pronoun: tuple[str, ...]
    noun: str


WORDINGS: Mapping[str, Wording] = {
    "capital-of": Wording(
        "What is the capital of {}?", ("What is its capital?", "what's its capital city"), "the capital"
    ),
    "currency-of": Wording(
        "What is the currency of {}?", ("Which currency does it use?", "What do people pay with there?"), "the currency"
    ),
    "language-of": Wording(
        "What is the main language of {}?",
        ("Which language do most people speak there?", "what do they speak there?"),
        "the main language",
    ),
    "continent-of": Wording(
        "On which continent is {}?", ("Which continent is it on?", "What continent is that on?"), "the continent"
    ),
    "neighbour-of": Wording(
        "Name a country that shares a land border with {}.",
        ("Which country borders it?", "name one of its neighbours"),
        "a neighbouring country",
    ),
    "domain-of": Wording(
        "What is the internet country domain of {}?",
        ("What is its internet domain?", "Which domain do websites there use?"),
        "the internet domain",
    ),
    "calling-code-of": Wording(
        "What is the international calling code of {}?",
        ("Which code do I dial to call there?", "What is its calling code?"),
        "the calling code",
    ),
    "symbol-of": Wording(
        "What is the chemical symbol of {}?", ("What is its symbol?", "which symbol does it have"), "the symbol"
    ),
    "atomic-number-of": Wording(
        "What is the atomic number of {}?",
        ("What is its atomic number?", "How many protons does it have?"),
        "the atomic number",
    ),
    "discoverer-of": Wording(
        "Who discovered the element {}?", ("Who discovered it?", "who found that one?"), "the discoverer"
    ),
    "discovery-year-of": Wording(
        "In which year was {} discovered?",
        ("When was it discovered?", "in which year did they find it"),
        "the year of discovery",
    ),
    "named-after": Wording(
        "What is the element {} named after?",
        ("What is it named after?", "Where does its name come from?"),
        "the origin of the name",
    ),
    "group-of": Wording(
        "In which group of the periodic table is {}?", ("Which group is it in?", "what is its group"), "the group"
    ),
    "family-of": Wording(
        "Which family of elements does {} belong to?",
        ("Which family does it belong to?", "what kind of element is that"),
        "the family",
    ),
    "atomic-weight-of": Wording(
        "What is the atomic weight of {}?",
        ("How heavy is one atom of it?", "What is its atomic weight?"),
        "the atomic weight",
    ),
    "country-of-city": Wording(
        "Which country is the city of {} in?", ("Which country is it in?", "what country is that in"), "the country"
    ),
}
# Questions whose answer is the subject of the next one, so that only the assistant has named it, and what they tell.
INVERSE: Mapping[str, str] = {
    "country-with-domain": "domain-of",
    "country-with-currency-code": "currency-of",
    "element-with-symbol": "symbol-of",
    "element-with-number": "atomic-number-of",
}
OTHER_SUBJECT = ("And of {}?", "What about {}?", "{}?", "And {}?", "and how about {}", "Same question for {}.")
OTHER_RELATION = ("And {}?", "What about {}?", "and {}", "Can you also tell me {}?")
SMALL_TALK = ("Thanks!", "ok, thank you very much", "Great, thanks a lot.", "cool", "Thank you, that was helpful.")
# What the follow-ups of a conversation are. `fact`: another fact of the subject by a pronoun; `relation`: the same by
# the name of the fact alone; `subject`: the same fact of another subject; `again`: a full question that names the
# subject; `switch`: a full question on another topic.
PLANS = (
    ("fact", "subject", "switch", "fact"),
    ("relation", "again", "small_talk", "subject"),
    ("subject", "fact", "again", "switch"),
    ("again", "relation", "subject", "small_talk", "fact"),
)
STAND_ALONE = frozenset(("again", "switch"))


class Asked(NamedTuple):
    """A question of questions.jsonl with its subject in words."""

    row: Mapping[str, Any]
    relation: str
    name: str

    @property
    def answer(self) -> str:
        """What the assistant replied."""
        return _sentence(self.row["gold"][0])


class Facts:
    """The answerable questions, each used once as a subject."""

    def __init__(self, questions: Sequence[Mapping[str, Any]]) -> None:
        self.by_subject: dict[str, dict[str, Asked]] = defaultdict(dict)
        self.inverse: dict[str, Mapping[str, Any]] = {}
        self.topics: dict[str, str] = {}
        for row in questions:
            tags = row["tags"]
            if tags["answerable"] != "yes":
                continue
            subject, relation = tags["subject"], tags["relation"]
            self.topics[subject] = tags["topic"]
            if relation in INVERSE:
                self.inverse.setdefault(subject, row)
            elif relation in WORDINGS:
                pattern = re.escape(WORDINGS[relation].full).replace(r"\{\}", "(.+)")
                if match := re.fullmatch(pattern, row["question"]):
                    self.by_subject[subject][relation] = Asked(row, relation, match[1])
        self._used: set[str] = set()

    def subject(self, topic: str, *, relation: str | None = None, least: int = 1) -> str:
        """The next subject of a topic with enough facts, and with this one."""
        found = next(
            subject
            for subject, facts in self.by_subject.items()
            if subject not in self._used
            and self.topics[subject] == topic
            and len(facts) >= least
            and (relation is None or relation in facts)
        )
        self._used.add(found)
        return found


def conversation(number: int, facts: Facts) -> Iterator[dict[str, Any]]:
    """The follow-ups of one conversation, each with what was said before."""
    plan = PLANS[number % len(PLANS)]
    turn = number // len(PLANS)
    topic, others = (("country", "element"), ("element", "country"))[turn % 2]
    subject = facts.subject(topic, least=4)
    left = list(facts.by_subject[subject].values())
    last = left.pop(number % len(left))
    opening = facts.inverse.get(subject) if turn // 4 % 2 and plan[0] in {"fact", "relation"} else None
    first = opening or last.row
    left = [one for one in left if one.relation != INVERSE.get(first["tags"]["relation"])]
    messages = [{"role": "user", "content": first["question"]}]
    messages.append({"role": "assistant", "content": _sentence(first["gold"][0])})
    for place, kind in enumerate(plan):
        pick = number + place
        asked: Asked | None = None
        if kind == "small_talk":
            said = SMALL_TALK[pick % len(SMALL_TALK)]
        else:
            if kind == "subject":
                subject = facts.subject(topic, relation=last.relation, least=3)
                asked = facts.by_subject[subject][last.relation]
            elif kind == "switch":
                subject = facts.subject("city") if pick % 2 else facts.subject(others, least=3)
            if kind in {"subject", "switch"}:
                left = [one for one in facts.by_subject[subject].values() if one is not asked]
            asked = last = asked or left.pop(pick % len(left))
            said = _said(kind, asked, pick)
        messages.append({"role": "user", "content": said})
        yield {
            "id": f"conversation-{number:02}-{place + 1}",
            "conversation": f"conversation-{number:02}",
            "split": "test" if turn // 2 % 2 else "train",
            "kind": "answer" if opening and place == 0 else kind,
            "stands_alone": kind in STAND_ALONE,
            "messages": list(messages),
            "question": asked.row["question"] if asked else None,
            "gold": asked.row["gold"] if asked else [],
            "passage": asked.row["tags"]["passage"] if asked else None,
        }
        messages.append({"role": "assistant", "content": asked.answer if asked else "You are welcome."})


def _sentence(answer: str) -> str:
    return answer.removesuffix(".") + "."


def _said(kind: str, asked: Asked, pick: int) -> str:
    wording = WORDINGS[asked.relation]
    match kind:
        case "fact":
            return wording.pronoun[pick % len(wording.pronoun)]
        case "relation":
            return OTHER_RELATION[pick % len(OTHER_RELATION)].format(wording.noun)
        case "subject":
            return OTHER_SUBJECT[pick % len(OTHER_SUBJECT)].format(asked.name)
        case _:
            question: str = asked.row["question"]
            return question


def conversations() -> list[dict[str, Any]]:
    """Every follow-up of every conversation."""
    lines = (HERE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    facts = Facts([json.loads(line) for line in lines])
    return [row for number in range(CONVERSATIONS) for row in conversation(number, facts)]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="directory to write to")
    rows = conversations()
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (parser.parse_args().out / "conversations.jsonl").write_text(text, encoding="utf-8", newline="\n")
    print(f"{len(rows)} follow-ups of {CONVERSATIONS} conversations")


if __name__ == "__main__":
    main()
