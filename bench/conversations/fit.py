"""Fit and test the classifier of app/core/standalone.py: `make bench-conversations`.

The messages are follow-ups of real conversations, each with the question that a person rewrote it to. Six in ten
conversations fit the weights, the others test them. It prints the weights to ship; the data stays where it is.
"""

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.core import standalone  # noqa: E402
from app.core.words import content_words, words  # noqa: E402
from bench.ladder.tables import shared  # noqa: E402

# What `bench/conversations/run.py` found on the demo's train conversations.
RATES = ROOT / "build" / "bench" / "conversations" / "rates.json"
RESAMPLES = 2000
TRAIN_SHARE = 0.6
# fmt: off
# Words that a rewrite adds without adding to the subject.
FILLERS = frozenset({
    "can", "could", "would", "should", "may", "might", "will", "you", "your", "i", "my", "me", "we", "our", "us", "am",
    "not", "if", "so", "about", "any", "some", "more", "also", "other", "others", "than", "then", "here", "into", "get",
    "got", "want", "need", "know", "tell", "explain", "clarify", "provide", "please", "mean", "use", "used", "using",
    "like", "specific", "different", "information", "details", "between", "during", "being", "he", "him", "his", "she",
    "her", "they", "them", "their", "one", "ones",
})
REFERRING = frozenset({
    "he", "him", "his", "she", "her", "hers", "it", "its", "they", "them", "their", "theirs", "this", "that", "these",
    "those", "one", "ones",
})
# fmt: on
UNRESOLVED = re.compile(r"\b(?:what|how) about\b|\bin this context\b|\bthis topic\b|\brefer to\b")


@dataclass(frozen=True)
class FollowUp:
    """A message after others of the same user, and a person's rewrite of it."""

    conversation: str
    earlier: tuple[str, ...]
    message: str
    rewrite: str


def follow_ups(*, with_first: bool = False) -> list[FollowUp]:
    """Every message that follows another; the first of a conversation stands alone without a model."""
    path = shared() / "data" / "conversations" / "followups.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        FollowUp(row["id"].split("<::>")[0], tuple(row["user_turns"][:-1]), row["last"], row["rewrite"])
        for row in rows
        if with_first or len(row["user_turns"]) > 1
    ]


def unchanged(row: FollowUp) -> bool:
    """The literal label: the rewrite is the message, up to case, accents and punctuation."""
    return words(row.message) == words(row.rewrite)


def needs_nothing(row: FollowUp) -> bool:
    """The label that is fitted: the rewrite adds nothing that a search would need.

    It adds no word of the conversation, no new name, and resolves no pronoun. People often only polish: "How old is the
    moon?" became "What is the age of the moon?", which is no reason to rewrite it.
    """
    if UNRESOLVED.search(row.rewrite.lower()):
        return False
    typed = _stems(words(row.message))
    before = _stems(_subject(" ".join(row.earlier)))
    added = _stems(_subject(row.rewrite)) - typed
    referring = [Counter(word for word in words(text) if word in REFERRING) for text in (row.message, row.rewrite)]
    if added and referring[0] - referring[1]:
        return False
    names = re.findall(r"(?<=\s)[A-Z][\w'-]*", row.rewrite)
    return not added & before and not added & _stems(_subject(" ".join(names)))


def _subject(text: str) -> frozenset[str]:
    return content_words(text) - FILLERS


def _stems(found: Sequence[str] | frozenset[str]) -> set[str]:
    """Words without their endings, roughly."""
    return {word[:5] if len(word) > 5 else word.rstrip("s") for word in found}


def in_train(row: FollowUp) -> bool:
    """The same conversations on every machine."""
    return crc32(row.conversation.encode()) % 100 < 100 * TRAIN_SHARE


def matrix(rows: Sequence[FollowUp]) -> np.ndarray:
    """The features of each row."""
    return np.array([list(standalone.features(row.message, row.earlier).values()) for row in rows])


def fit(rows: Sequence[FollowUp], labels: np.ndarray) -> tuple[float, dict[str, float]]:
    """The intercept and the weights, rounded as they are shipped."""
    model = LogisticRegression(C=1.0, max_iter=1000).fit(matrix(rows), labels)
    names = standalone.features("", ())
    weights = {name: round(float(weight), 2) for name, weight in zip(names, model.coef_[0], strict=True)}
    return round(float(model.intercept_[0]), 2), weights


def resampled(
    rows: Sequence[FollowUp], statistic: Callable[[np.ndarray], float], resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """A statistic of the rows' places, with its interval (95 %) over whole conversations."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.conversation, []).append(place)
    groups = list(places.values())
    generator = np.random.default_rng(3)
    drawn = [
        statistic(np.concatenate([groups[one] for one in generator.integers(0, len(groups), len(groups))]))
        for _ in range(resamples)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return round(statistic(np.arange(len(rows))), 3), round(float(low), 3), round(float(high), 3)


def figures(rows: Sequence[FollowUp], predicted: np.ndarray, labels: np.ndarray) -> Mapping[str, object]:
    """AUROC, accuracy at the shipped threshold, and how well the probabilities are calibrated."""
    said = predicted >= standalone.THRESHOLD
    english = predicted > 0
    quarters = np.array_split(np.flatnonzero(english)[np.argsort(predicted[english], kind="stable")], 4)
    bins = [[len(at), round(float(predicted[at].mean()), 2), round(float(labels[at].mean()), 2)] for at in quarters]
    return {
        "n": len(rows),
        "conversations": len({row.conversation for row in rows}),
        "stand_alone": round(float(labels.mean()), 3),
        "auroc": resampled(rows, lambda at: float(roc_auc_score(labels[at], predicted[at]))),
        "accuracy": resampled(rows, lambda at: float((said == labels)[at].mean())),
        "said_to_stand_alone": round(float(said.mean()), 3),
        "right_when_it_says_so": resampled(rows, lambda at: float(labels[at][said[at]].mean())),
        "mean_difference": round(float((predicted - labels)[english].mean()), 3),
        "calibration: n, predicted, observed": bins,
    }


def found_first(
    predicted: np.ndarray, labels: np.ndarray, rates: Mapping[str, Mapping[str, float]]
) -> dict[float, tuple[float, float]]:
    """By threshold, how often the passage would be first at the demo's rates, and the share that is rewritten."""
    typed, rewritten = (np.where(labels, rates[way]["True"], rates[way]["False"]) for way in ("as typed", "rewrite"))
    result = {}
    for threshold in (0.0, 0.4, 0.52, 0.6, 0.7, 0.8, 1.01):
        alone = predicted >= threshold
        result[threshold] = (
            round(float(np.where(alone, typed, rewritten).mean()), 3),
            round(1 - float(alone.mean()), 3),
        )
    return result


def fitted_rows(rows: Sequence[FollowUp]) -> list[FollowUp]:
    """Those of train that get a probability: without an English word, a message never stands alone."""
    return [row for row in rows if in_train(row) and standalone.probability(row.message, row.earlier) > 0]


def main() -> None:
    """Fit on train, test on the rest, and print."""
    everything = follow_ups(with_first=True)
    rows = [row for row in everything if row.earlier]
    fitted = fitted_rows(rows)
    intercept, weights = fit(fitted, np.array([needs_nothing(row) for row in fitted]))
    print(f"INTERCEPT = {intercept}\nWEIGHTS: Mapping[str, float] = {json.dumps(weights, indent=4)}")
    if (intercept, weights) != (standalone.INTERCEPT, standalone.WEIGHTS):
        print("these differ from app/core/standalone.py, which is tested below")
    for name, label, messages in (
        ("needs nothing", needs_nothing, rows),
        ("unchanged", unchanged, rows),
        ("unchanged, with first messages", unchanged, everything),
    ):
        for part in ("train", "test"):
            chosen = [row for row in messages if in_train(row) == (part == "train")]
            predicted = np.array([standalone.probability(row.message, row.earlier) for row in chosen])
            print(name, part, json.dumps(figures(chosen, predicted, np.array([label(row) for row in chosen]))))
    if RATES.exists():
        train = [row for row in rows if in_train(row)]
        predicted = np.array([standalone.probability(row.message, row.earlier) for row in train])
        labels = np.array([needs_nothing(row) for row in train])
        print("found first by threshold:", found_first(predicted, labels, json.loads(RATES.read_text())))
    print("small talk:", [row.message for row in rows if standalone.small_talk(row.message)])


if __name__ == "__main__":
    main()
