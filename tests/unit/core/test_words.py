"""Words: spelling does not matter, and scripts without spaces have words, too."""

import pytest

from app.core.words import content_words, passage_words, scripts, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("The Café's MENU!", ["the", "cafe", "s", "menu"]),
        ("1,385 of 12,345.5 and 3.14", ["1385", "of", "12345.5", "and", "3.14"]),
        ("160th place", ["160", "th", "place"]),
        ("H2O co2", ["h2", "o", "co2"]),
        ("ＦＵＬＬ ｗｉｄｔｈ", ["full", "width"]),
        ("Straße", ["strasse"]),
        ("東京は首都", ["東京", "京は", "は首", "首都"]),
        ("水", ["水"]),
        ("abc東京def", ["abc", "東京", "def"]),
        ("हिन्दी भाषा", ["हिनदी", "भाषा"]),
        ("Москва́ река", ["москва", "река"]),
    ],
)
def test_words_are_folded(text: str, expected: list[str]) -> None:
    """Case, accents, width and digit groups do not matter; ideographs come in pairs."""
    assert words(text) == expected


def test_content_words_say_something() -> None:
    """Words of grammar are left out."""
    assert content_words("What is the capital of France?") == {"capital", "france"}
    assert content_words("what is it?") == set()


def test_no_text_becomes_much_longer() -> None:
    """One character can stand for 18; a question full of them must not cost that much more."""
    assert sum(map(len, words("\ufdfa" * 1000))) <= 4 * 1000 + 64
    assert words("\ufdfa") == words("صلى الله عليه وسلم")


def test_a_passage_has_the_words_of_its_title() -> None:
    """Title and text count alike."""
    assert passage_words("Jamaica: geography", "The capital is Kingston.") >= {"jamaica", "geography", "kingston"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", {"LATIN"}),
        ("123 ?", set()),
        ("Привет, world", {"CYRILLIC", "LATIN"}),
        ("日本のカメラ", {"CJK", "HIRAGANA", "KATAKANA"}),
        ("日本 № 5", {"CJK"}),
    ],
)
def test_scripts_are_named(text: str, expected: set[str]) -> None:
    """Only letters count."""
    assert scripts(text) == expected
