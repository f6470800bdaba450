"""Whether the last message of a conversation can be searched as it was typed: plain arithmetic on its words.

`bench/conversations/fit.py` fits the weights. They hold for English; after other messages, one in another language does
not stand alone.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import Any

from app.core.words import STOP_WORDS, words

# fmt: off
_PRONOUNS = frozenset({"he", "him", "his", "she", "her", "hers", "it", "its", "they", "them", "their", "theirs"})
_POINTERS = frozenset({
    "this", "that", "these", "those", "there", "here", "then", "one", "ones", "such", "same", "both", "either",
    "former", "latter", "above", "other", "others", "another", "else", "too",
})
_OPENERS = frozenset({"and", "but", "or", "so", "then", "also", "ok", "okay", "yes", "no", "because", "about"})
_ASKING = frozenset({
    "what", "which", "who", "whom", "whose", "when", "where", "why", "how", "is", "are", "was", "were", "do", "does",
    "did", "can", "could", "will", "would", "should", "has", "have", "had", "may", "name", "tell", "give", "explain",
    "describe", "list",
})
_PERSONAL = frozenset({"i", "me", "my", "you", "your", "we", "our", "us"})
# Words of English sentences that are not words of other languages in the same script.
_ENGLISH = frozenset({
    "the", "of", "is", "are", "were", "what", "which", "who", "whose", "when", "where", "why", "how", "does", "did",
    "can", "could", "would", "should", "has", "have", "and", "with", "for", "from", "this", "that", "these", "those",
    "there", "it", "its", "they", "their", "about", "name", "tell",
})
_GREETINGS = frozenset({
    "thanks", "thank", "thx", "cheers", "hello", "hi", "hey", "bye", "goodbye", "ok", "okay", "great", "cool", "nice",
    "perfect", "awesome", "wow", "wonderful", "excellent", "lol", "haha",
})
_CHATTER = _GREETINGS | {
    "you", "so", "very", "much", "a", "lot", "for", "the", "your", "help", "helping", "was", "is",
    "it", "s", "all", "there", "and", "again", "good", "morning", "evening", "night", "day", "got", "i", "see",
    "really", "helpful", "useful", "answer", "answers", "info", "information", "now", "well",
}
_THANKS = frozenset({"thanks", "thank", "thx", "cheers"})
# Without thanks, these choose something: "ok that one".
_CHOOSING = frozenset({"that", "this", "one"})
_PHRASES = frozenset({
    "how are you", "how are you doing", "good morning", "good evening", "good night", "got it", "i see", "see you",
    "have a nice day", "well done", "no thanks", "no thank you", "that s all", "that is all",
})
# fmt: on
_FUNCTION_WORDS = STOP_WORDS | _PRONOUNS | _POINTERS | _OPENERS | _ASKING | _PERSONAL
# Of a logistic model, fitted on `features`.
INTERCEPT = -0.7
WEIGHTS: Mapping[str, float] = {
    "pronoun": -0.81,
    "pointer": -0.68,
    "asking": 0.26,
    "personal": -0.31,
    "length": 0.55,
    "short": -0.65,
    "repeated": 0.77,
}
# A message that is less likely to stand alone is rewritten.
THRESHOLD = 0.52
_LONGEST_SMALL_TALK, _LONGEST_REWRITE = 80, 300
_REFUSAL = re.compile(r"\b(?:sorry|as an ai|i (?:can(?:no|')t|am unable|don't|do not)|unable to)\b", re.IGNORECASE)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a chat message, from a string or from parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if is_text(part))
    return content if isinstance(content, str) else ""


def is_text(part: object) -> bool:
    """Whether a part of a message is text."""
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def small_talk(message: str) -> bool:
    """Whether a message only greets or thanks: there is nothing to search."""
    if len(message) > _LONGEST_SMALL_TALK:
        return False
    said = words(message)
    if " ".join(said) in _PHRASES:
        return True
    # A question is none: "is it ok?"
    chatter = _CHATTER if _THANKS.isdisjoint(said) else _CHATTER | _CHOOSING
    return "?" not in message and not _GREETINGS.isdisjoint(said) and chatter.issuperset(said)


def features(message: str, earlier: Sequence[str]) -> dict[str, float]:
    """What the words of a message show, beside those of the user's earlier messages."""
    said = words(message)
    subject = _subject(said)
    before = frozenset(word for text in earlier for word in words(text))
    what_about = said[1:2] == ["about"]
    return {
        "pronoun": float(not _PRONOUNS.isdisjoint(said)),
        "pointer": float(not _POINTERS.isdisjoint(said)),
        "asking": float(bool(said) and said[0] in _ASKING and not what_about),
        "personal": float(not _PERSONAL.isdisjoint(said)),
        "length": log(1 + len(subject)),
        "short": float(len(subject) <= 1),
        "repeated": log(1 + len(subject & before)),
    }


def probability(message: str, earlier: Sequence[str]) -> float:
    """How likely the message stands alone after these messages of the user; 0 if it is not English."""
    if not earlier:
        return 1.0
    if _ENGLISH.isdisjoint(words(message)):
        return 0.0
    found = features(message, earlier)
    return 1.0 / (1.0 + exp(-INTERCEPT - sum(weight * found[name] for name, weight in WEIGHTS.items())))


def stands_alone(message: str, earlier: Sequence[str]) -> bool:
    """Whether to search for the message as it was typed."""
    return probability(message, earlier) >= THRESHOLD


def is_rewrite(rewrite: str, message: str, before: Sequence[str]) -> bool:
    """Whether a text may replace the message after what was said before it, by anyone.

    It is one short line, keeps some of the message's subject, and adds something of the conversation. Small readers
    often repeat the question before, or the message itself.
    """
    if not rewrite or len(rewrite) > _LONGEST_REWRITE or len(rewrite.splitlines()) > 1 or _REFUSAL.search(rewrite):
        return False
    kept, given = _stems(_subject(words(message))), _stems(_subject(words(rewrite)))
    known = _stems(_subject(word for text in before for word in words(text)))
    return (not kept or not kept.isdisjoint(given)) and not known.isdisjoint(given - kept)


def joined(message: str, earlier: Sequence[str]) -> str:
    """What to search for without a rewrite: the message and the user's message before it.

    More of the conversation finds less: the topic of older messages outweighs the message.
    """
    return " ".join((message, *earlier[-1:]))


def _subject(said: Iterable[str]) -> frozenset[str]:
    return frozenset(said) - _FUNCTION_WORDS


def _stems(said: Iterable[str]) -> frozenset[str]:
    """Words without their endings, roughly."""
    return frozenset(word[:5] if len(word) > 5 else word.rstrip("s") for word in said)
