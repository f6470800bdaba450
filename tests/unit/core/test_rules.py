"""Rules for questions that must be answered from passages."""

import pytest

from app.core.rules import compile_rules


@pytest.mark.parametrize(
    ("question", "rule"),
    [
        ("What is the LATEST price?", "latest"),
        ("What does the Data  Protection act say?", "data protection"),
        ("What data is there?", None),
        ("What is lately new?", None),
        ("", None),
    ],
)
def test_a_rule_is_met_by_its_words(question: str, rule: str | None) -> None:
    """Whole words in their order, whatever their case and the spaces between them."""
    assert compile_rules(["latest", "data protection"]).matches(question) == rule


def test_without_rules_no_question_is_special() -> None:
    """Without rules no question matches."""
    assert compile_rules([]).matches("What is the latest price?") is None


def test_a_rule_without_words_is_refused() -> None:
    """It could never match."""
    with pytest.raises(ValueError, match="no word"):
        compile_rules(["?!"])
