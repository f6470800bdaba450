"""Build the demo world: `python -m demo.build` writes the passages and the four files of questions next to this file.

The build is deterministic: the same packages (demo/requirements.txt) give the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from demo import cities, countries, elements, unseen
from demo.out_of_corpus import out_of_corpus, out_of_corpus_unseen
from demo.world import Fact, Passage, mentions, normalise, spread

# relation: (facts asked, second phrasings among them). Most of it is what a small model half knows:
# if every question were hard or every question easy, there would be nothing to decide.
ANSWERABLE: Mapping[str, tuple[int, int]] = {
    "capital-of": (200, 70), "country-with-capital": (200, 50), "continent-of": (150, 30),
    "currency-of": (140, 30), "language-of": (90, 20), "neighbour-of": (90, 0),
    "currency-code-of": (60, 0), "country-with-currency-code": (40, 0),
    "domain-of": (70, 15), "country-with-domain": (50, 15), "calling-code-of": (50, 10),
    "country-with-calling-code": (20, 0),
    "country-of-city": (500, 110), "state-of-city": (80, 15),
    "symbol-of": (120, 30), "element-with-symbol": (120, 30), "atomic-number-of": (100, 30),
    "element-with-number": (50, 10), "element-after": (25, 0), "family-of": (50, 0), "group-of": (30, 0),
    "period-of": (25, 0), "atomic-weight-of": (25, 0), "state-of": (25, 0), "melting-point-of": (15, 0),
    "discoverer-of": (45, 10), "discovery-year-of": (25, 0), "named-after": (50, 5),
}  # fmt: skip
UNANSWERABLE: Mapping[str, int] = {
    "capital-of": 20, "country-with-capital": 20, "calling-code-of": 25, "domain-of": 20, "country-of-city": 110,
    "state-of-city": 20, "iso-code-of": 45, "density-of": 35, "electronegativity-of": 25,
}  # fmt: skip


def self_answering(fact: Fact) -> bool:
    """Whether a question contains its answer."""
    return any(mentions(question, gold) for question in fact.questions for gold in fact.gold)


def leaks(fact: Fact, passages: Iterable[Passage]) -> bool:
    """Whether a fact that was left out on purpose can still be read in a passage on its subject.

    An inverse question asks for the subject itself, which its own passages of course name.
    """
    if fact.relation.startswith("country-with-"):
        return False
    return any(
        mentions(passage.text, gold)
        for passage in passages
        if fact.subject in (passage.id, passage.id.rsplit("-", 1)[0])
        for gold in fact.gold
    )


def check_stated(fact: Fact, texts: Mapping[str, str]) -> None:
    """Refuse to publish a question whose passage does not contain the answer."""
    if fact.passage and not any(mentions(texts[fact.passage], gold) for gold in fact.gold):
        raise ValueError(f"{fact.passage} does not answer: {fact.questions[0]} {fact.gold}")


def question(fact: Fact, *, second: bool) -> dict[str, Any]:
    """Write one line of questions.jsonl; both phrasings of a fact share its group."""
    tags = {
        "topic": fact.topic,
        "relation": fact.relation,
        "popularity": fact.popularity,
        "answerable": "yes" if fact.passage else "no",
        "subject": fact.subject,
    }
    if fact.passage:
        tags["passage"] = fact.passage
    return {
        "id": f"{fact.relation}-{fact.key}" + ("-b" if second else ""),
        "group": f"{fact.relation}:{fact.key}",
        "question": fact.questions[1 if second else 0],
        "gold": list(dict.fromkeys(fact.gold)),
        "tags": tags,
    }


def choose(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """Pick the questions of each relation at even steps through its facts, from well known to little known."""
    found: list[dict[str, Any]] = []
    for relation, (count, again) in ANSWERABLE.items():
        asked = spread([f for f in facts if f.relation == relation and f.passage], count)
        found += [question(fact, second=False) for fact in asked]
        found += [question(fact, second=True) for fact in spread(asked, again)]
    for relation, count in UNANSWERABLE.items():
        asked = spread([f for f in facts if f.relation == relation and not f.passage], count)
        found += [question(fact, second=False) for fact in asked]
    return found


def choose_unseen(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """Pick the facts of the relations that `choose` leaves out, in the same way."""
    return [
        question(fact, second=False)
        for relation, count in unseen.UNSEEN.items()
        for fact in spread([f for f in facts if f.relation == relation], count)
    ]


def build() -> tuple[list[Passage], list[dict[str, Any]], list[dict[str, Any]]]:
    """Build the passages, their questions and the questions of unseen relations in memory."""
    states = countries.load_countries()
    included, held_out = cities.load_cities(states)
    table = elements.load_elements()
    passages = [
        *countries.passages(states, cities.largest_by_country(included)),
        *cities.passages(included),
        *elements.passages(table),
    ]
    everything = f" {normalise(' '.join(passage.text for passage in passages))} "
    held_out = [city for city in held_out if f" {normalise(city.name)} " not in everything]
    facts = [*countries.facts(states), *cities.facts(included, held_out), *elements.facts(table)]
    texts = {passage.id: passage.text for passage in passages}
    kept = [f for f in facts if not self_answering(f) and (f.passage or not leaks(f, passages))]
    new = [f for f in unseen.facts(states, included, table) if not self_answering(f)]
    for fact in (*kept, *new):
        check_stated(fact, texts)
    return passages, choose(kept), choose_unseen(new)


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    """Write all files and print a summary."""
    parser = argparse.ArgumentParser(description="Build the demo world from the open fact tables.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="directory to write to")
    out: Path = parser.parse_args().out
    passages, questions, new = build()
    files: dict[str, list[dict[str, Any]]] = {
        "passages": [{"id": p.id, "title": p.title, "text": p.text, "topic": p.topic} for p in passages],
        "questions": questions,
        "unseen": new,
        "out_of_corpus": out_of_corpus(),
        "out_of_corpus_unseen": out_of_corpus_unseen(),
    }
    for name, rows in files.items():
        (out / f"{name}.jsonl").write_text(_lines(rows), encoding="utf-8", newline="\n")
    answerable = Counter(q["tags"]["answerable"] for q in questions)
    groups = len({q["group"] for q in questions if q["tags"]["answerable"] == "yes"})
    print(", ".join(f"{len(rows)} {name}" for name, rows in files.items()))
    print(f"questions: {dict(answerable)}, {groups} answerable facts")


if __name__ == "__main__":
    main()
