"""In which order many systems answer the same questions, so that neither drift nor a warm cache favours one of them.

A belt: at every step one question enters, and each question on the belt is answered by the next system of its own
random order, every `lag` steps. So all systems are at work all the time, on different questions, and whatever the
machine does meanwhile falls on all of them alike. Between two answers to the same question lie `lag` times as many
answers to others as there are systems: a reader that keeps the prompts it saw last has forgotten it by then.

    step      1   2   3   4        lag 1, three systems; each column is one step
    q1        A   C   B
    q2            B   A   C
    q3                C   B  …
"""

from collections.abc import Iterator, Sequence
from random import Random


def padding(systems: int, lag: int) -> int:
    """How many questions that do not count must lie before the first that does, and behind the last."""
    return (systems - 1) * lag


def belt(questions: int, systems: Sequence[str], *, lag: int, rng: Random) -> Iterator[tuple[int, str]]:
    """Who answers which question, in order; questions below zero and from `questions` on are padding.

    The padding keeps the belt full, so that the first and the last question that count are met like all others.
    """
    ends = padding(len(systems), lag)
    orders: dict[int, list[str]] = {}
    for step in range(questions + ends):
        for place in range(len(systems)):
            question = step - place * lag
            if question not in orders:
                orders[question] = rng.sample(systems, len(systems))
            yield question, orders[question][place]
