"""Whether a message stands alone, what is small talk, and which rewrites are used."""

import pytest

from app.core.standalone import WEIGHTS, features, is_rewrite, joined, probability, small_talk, stands_alone

BEFORE = ["What is the capital of China?"]
SAID = [*BEFORE, "Beijing."]


@pytest.mark.parametrize(
    "message",
    [
        "What is the currency of the Netherlands?",
        "Which country is the city of Shanghai in?",
        "Who discovered the element hydrogen?",
        "What is the population of China in millions of people?",
    ],
)
def test_a_full_question_stands_alone(message: str) -> None:
    """A question that names its subject is searched as it was typed."""
    assert stands_alone(message, BEFORE)


@pytest.mark.parametrize(
    "message",
    ["And of Laos?", "What about Laos?", "Laos?", "What is its currency?", "and the currency", "Who was he?", "", "?!"],
)
def test_a_message_that_refers_to_others_does_not_stand_alone(message: str) -> None:
    """Pronouns, ellipsis and fragments need the conversation."""
    assert not stands_alone(message, BEFORE)


def test_without_earlier_messages_everything_stands_alone() -> None:
    """There is nothing that a rewrite could add."""
    assert stands_alone("And of Laos?", [])


@pytest.mark.parametrize(
    "message", ["Welche Sprache spricht man in Deutschland?", "北京有多少人口？", "¿Y la moneda de Perú?"]
)
def test_other_languages_are_rewritten(message: str) -> None:
    """The weights hold for English, so that a follow-up in another language never stands alone."""
    assert probability(message, BEFORE) == 0.0


def test_a_pronoun_lowers_the_probability_and_a_known_subject_raises_it() -> None:
    """The features have the effect that their names say."""
    plain = probability("What is the currency of the country?", BEFORE)
    assert probability("What is the currency of it?", BEFORE) < plain
    assert probability("What is the currency of China?", BEFORE) > plain
    assert features("x", ()).keys() == WEIGHTS.keys()


@pytest.mark.parametrize(
    "message",
    [
        "Thanks!",
        "ok, thank you very much",
        "Hello",
        "How are you?",
        "Got it.",
        "That is all",
        "cool",
        "Thanks for that one",
    ],
)
def test_thanks_and_greetings_are_small_talk(message: str) -> None:
    """There is nothing to search for."""
    assert small_talk(message)


@pytest.mark.parametrize(
    "message",
    [
        "Thanks, and of Laos?",
        "Is it ok?",
        "What is a hello world program",
        "yes",
        "",
        "great " * 50,
        "the help",
        "ok that one",
    ],
)
def test_questions_are_no_small_talk(message: str) -> None:
    """A message with a subject, or that asks, is searched."""
    assert not small_talk(message)


@pytest.mark.parametrize(
    ("message", "rewrite"),
    [
        ("And of Laos?", "What is the capital of Laos?"),
        ("What is its currency?", "What is the currency of China?"),
        ("How large is it?", "How large is Beijing?"),
        ("Who was he?", "Who was the mayor of Beijing?"),
    ],
)
def test_a_rewrite_keeps_the_subject_and_adds_something_of_the_conversation(message: str, rewrite: str) -> None:
    """What the message asks for stays, and what it refers to is named."""
    assert is_rewrite(rewrite, message, SAID)


@pytest.mark.parametrize(
    "rewrite",
    [
        "",
        "What is the capital of China?",
        "And of Laos?",
        "What is the largest lake of Laos?",
        "What is the capital of Laos?\nIt is Vientiane.",
        "I'm sorry, I can't tell the capital of Laos.",
        "What is the capital of Laos" + " and of Laos" * 30,
    ],
    ids=["empty", "repeats", "unchanged", "invents", "lines", "refuses", "long"],
)
def test_other_texts_are_no_rewrite(rewrite: str) -> None:
    """An empty, long or multi-line text, a refusal, the question before and the message itself are not used."""
    assert not is_rewrite(rewrite, "And of Laos?", SAID)


def test_without_a_rewrite_the_message_before_is_added() -> None:
    """The message comes first, and only the last one is added."""
    assert joined("And of Laos?", ["Hello there", *BEFORE]) == "And of Laos? What is the capital of China?"
    assert joined("And of Laos?", []) == "And of Laos?"
