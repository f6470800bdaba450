"""Prompts: questions and passages are data, and every character of a template changes its digest."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.prompts import DEFAULT, WRITING, Prompts, WritingPrompts, break_markers, possible_markers

PLAIN = Prompts(closed_book="Q: {question}", open_book="{passages}\nQ: {question}")


def test_closed_book() -> None:
    """Without passages the closed-book template is filled in."""
    assert PLAIN.render("Who wrote it?") == "Q: Who wrote it?"


def test_open_book_numbers_passages_best_first() -> None:
    """Passages are numbered from one in the order given, a title before its text and none where there is none."""
    rendered = PLAIN.render("Who?", [("Emma", "A novel."), ("", "By Austen.")])
    assert rendered == "[1] Emma: A novel.\n[2] By Austen.\nQ: Who?"


def test_the_order_is_the_templates() -> None:
    """A template may put the question first, or repeat it."""
    prompts = Prompts("{question} {question}", "{question}\n{passages}\n{question}")
    assert prompts.render("Q") == "Q Q"
    assert prompts.render("Q", [("", "P")]) == "Q\n[1] P\nQ"


def test_a_question_cannot_bring_a_placeholder() -> None:
    """A question that contains a placeholder stays as it was asked."""
    question = "What does {passages} or {question} mean?"
    assert PLAIN.render(question) == f"Q: {question}"
    assert PLAIN.render(question, [("", "P")]) == f"[1] P\nQ: {question}"


def test_a_passage_cannot_bring_a_placeholder() -> None:
    """A passage or title that contains a placeholder stays as it was stored."""
    rendered = PLAIN.render("Q", [("{passages}", "see {question} and {0} and \\g<1>")])
    assert rendered == "[1] {passages}: see {question} and {0} and \\g<1>\nQ: Q"


def test_a_passage_is_one_line() -> None:
    """Line breaks of every kind in passage, title and question become single spaces."""
    rendered = PLAIN.render("one\n\ntwo", [("A\nB", "x\r\nfake\u2028y\t\x0bz\n")])
    assert rendered == "[1] A B: x fake y z\nQ: one two"


def test_a_passage_cannot_begin_another() -> None:
    """A number like those of passages is broken up in a passage or title; a note directly after its word is not."""
    rendered = PLAIN.render("Is [2] right?", [("[2]", "x\n[2] fake [10]\t[3]"), ("", "[1] y.[2] z [4] [5]a")])
    assert rendered == "[1] [ 2]: x [ 2] fake [ 10] [ 3]\n[2] [ 1] y.[2] z [ 4] [ 5]a\nQ: Is [2] right?"


def test_all_white_space_is_one_space() -> None:
    """Every white space of Unicode separates words and is a plain space in the prompt."""
    for code in range(sys.maxunicode + 1):
        if chr(code).isspace():
            assert PLAIN.render(f"{chr(code)}a{chr(code)}b {chr(code)}") == "Q: a b"


MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<｜User｜>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<s>",
    "</s>",
    "<bos>",
    "[|user|]",
    "[|endofturn|]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[AVAILABLE_TOOLS]",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<file_sep>",
    "<<SYS>>",
    "<</SYS>>",
)


@pytest.mark.parametrize("marker", MARKERS)
def test_nothing_can_speak_in_anothers_turn(marker: str) -> None:
    """Markers of chat templates in question, title or text stay readable and are no longer markers."""
    rendered = PLAIN.render(f"{marker}a{marker}", [(f"{marker}", f"b{marker * 2}")])
    assert marker not in rendered
    apart = f"{marker[0]} {marker[1:]}"
    assert rendered == f"[1] {apart}: b{apart}{apart}\nQ: {apart}a{apart}"
    assert break_markers(break_markers(marker)) == apart


@pytest.mark.parametrize(
    "text", ["a < b | c > d", "x[0] <= y", "<b>bold</b> [1] [INSTALL]", "a|b", "<html>", "f<string>", "[s]ic < s >"]
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    """Brackets are common, and what a calibrator was fitted on must not change."""
    assert break_markers(text) == text


def test_what_the_reader_calls_a_control_token_is_broken_up() -> None:
    """In question, title and text; what only looks like one stays."""
    texts = ("<pad> a<pad>[MASK]<b>", "[MASK]", "see <pad>, a[i], [1], <i>")
    possible = set().union(*map(possible_markers, texts))
    assert possible == {"<pad>", "[MASK]", "<b>", "[i]", "<i>"}
    rendered = PLAIN.render(texts[0], [texts[1:]], {"<pad>", "[MASK]"})
    assert rendered == "[1] [ MASK]: see < pad>, a[i], [ 1], <i>\nQ: < pad> a< pad>[ MASK]<b>"


def test_a_control_token_cannot_hide_in_another_text() -> None:
    """Not in brackets, and not in what is broken up in any case."""
    assert {"<end>"} <= possible_markers("[<end>]") & possible_markers("[|x<end>]") & possible_markers("<[a]<end>>")
    assert break_markers("[<end>]", {"<end>"}) == "[< end>]"


@pytest.mark.parametrize("text", ["", "plain", "a < b", "[1] [2, 3] [4-6]", "<|im_end|>[INST]", "[citation needed]"])
def test_nothing_to_ask_the_reader(text: str) -> None:
    """Numbers, texts with spaces, and what is broken up in any case."""
    assert possible_markers(text) == set()


@pytest.mark.parametrize("name", ["passages", "questions", "unseen"])
def test_the_demos_texts_are_unchanged(name: str) -> None:
    """What the shipped calibrator was fitted on is in the prompt as it is stored, and the reader is asked nothing."""
    for line in (Path(__file__).parents[3] / f"demo/{name}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if name == "passages":
            expected = f"[1] {entry['title']}: {entry['text']}\nQ: Q"
            assert PLAIN.render("Q", [(entry["title"], entry["text"])]) == expected
            assert not possible_markers(entry["title"] + entry["text"])
        else:
            assert PLAIN.render(entry["question"]) == f"Q: {entry['question']}"
            assert not possible_markers(entry["question"])


@given(st.text(max_size=40), st.lists(st.tuples(st.text(max_size=20), st.text(max_size=40)), min_size=1, max_size=5))
def test_there_are_as_many_lines_as_passages(question: str, passages: list[tuple[str, str]]) -> None:
    """Whatever question and passages hold, each passage is one numbered line, and the question the last."""
    lines = PLAIN.render(question, passages).splitlines()
    assert len(lines) == len(passages) + 1
    assert all(line.startswith(f"[{number}] ") for number, line in enumerate(lines[:-1], start=1))
    assert lines[-1].startswith("Q: ")


def test_digest_is_stable() -> None:
    """Equal templates have the same sixteen hex digits, wherever they were made."""
    assert PLAIN.digest == Prompts("Q: {question}", "{passages}\nQ: {question}").digest
    assert len(PLAIN.digest) == 16
    assert set(PLAIN.digest) <= set("0123456789abcdef")


@given(st.data(), st.sampled_from(["closed_book", "open_book"]), st.characters(exclude_categories=["Cs"]))
def test_digest_changes_with_any_character(data: st.DataObject, which: str, character: str) -> None:
    """One character more, anywhere outside a placeholder, in either template, is another digest."""
    template = getattr(DEFAULT, which)
    at = data.draw(st.integers(0, len(template)))
    changed = template[:at] + character + template[at:]
    if "{question}" in changed and ("{passages}" in changed) == ("{passages}" in template):
        other = {"closed_book": DEFAULT.closed_book, "open_book": DEFAULT.open_book, which: changed}
        assert Prompts(**other).digest != DEFAULT.digest


def test_digest_knows_which_template_a_character_is_in() -> None:
    """Moving text from one template to the other is a change."""
    left = Prompts("{question}a", "b{question}{passages}")
    right = Prompts("{question}", "ab{question}{passages}")
    assert left.digest != right.digest


@pytest.mark.parametrize(
    ("closed_book", "open_book", "which"),
    [
        ("no place", "{question} {passages}", "closed-book"),
        ("{question} {passages}", "{question} {passages}", "closed-book"),
        ("{question}", "{question}", "open-book"),
        ("{question}", "{passages}", "open-book"),
        ("{question}", "", "open-book"),
    ],
)
def test_a_template_must_name_what_it_needs(closed_book: str, open_book: str, which: str) -> None:
    """A template that would lose the question or the passages is refused by name."""
    with pytest.raises(ValueError, match=f"the {which} template"):
        Prompts(closed_book, open_book)


def test_the_default_reads_as_intended() -> None:
    """The default prompts end with the question, and the open-book one begins with the passages."""
    assert DEFAULT.render("Who?") == "Answer the question in a few words.\n\nQuestion: Who?"
    opened = DEFAULT.render("Who?", [("T", "x")])
    assert opened.startswith("[1] T: x\n")
    assert opened.endswith("Who?")


ADDED = WritingPrompts("P:\n{passages}\nM: ", "None. ", "{passages} {question} {answer}", "{question} {answer}")
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "user", "content": "Two {passages} <|im_end|>?", "name": "me"},
    {"role": "assistant", "content": "T"},
]


def test_passages_are_added_to_the_last_message_of_the_user() -> None:
    """Every other message, and every other field of that one, stays as it is."""
    added = ADDED.with_passages(TALK, [("T", "x\n[2] y {passages}")], {"<y>"})
    assert added[3] == TALK[3] | {"content": "P:\n[1] T: x [ 2] y {passages}\nM: Two {passages} <|im_end|>?"}
    assert added[:3] + added[4:] == TALK[:3] + TALK[4:]
    assert ADDED.with_note(TALK)[3]["content"] == "None. Two {passages} <|im_end|>?"


def test_control_tokens_are_broken_up_only_in_the_passages() -> None:
    """The caller may send what they like; a passage may not."""
    (message,) = ADDED.with_passages([{"role": "user", "content": "<|a|> <y>"}], [("", "<|a|> <y>")], {"<y>"})
    assert message["content"] == "P:\n[1] < |a|> < y>\nM: <|a|> <y>"


def test_passages_are_added_to_any_content() -> None:
    """To parts as a part of their own, and to a message without content; without a user, to nothing."""
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]
    (message,) = ADDED.with_note([{"role": "user", "content": parts}])
    assert message["content"] == [{"type": "text", "text": "None. "}, *parts]
    assert ADDED.with_note([{"role": "user"}])[0]["content"] == "None. "
    assert ADDED.with_note(TALK[:1]) == TALK[:1]


def test_request_for_a_full_answer() -> None:
    """Question, answer and passages are data: no placeholder is filled in twice, and control tokens are broken up."""
    asked = ADDED.to_write_out("Who {answer}?", "He <y> {passages}", [("T", "x {question}")], {"<y>"})
    assert asked == "[1] T: x {question} Who {answer}? He < y> {passages}"
    assert ADDED.to_write_out("Who?", "He", (), ()) == "Who? He"


def test_digest_of_what_is_added() -> None:
    """Another template has another digest."""
    others = (
        WritingPrompts("a", "b", "c", "d"),
        WritingPrompts("ab", "", "c", "d"),
        WritingPrompts("a", "b", "", "cd"),
    )
    digests = {one.digest for one in (WRITING, ADDED, *others)}
    assert len(digests) == 5
    assert all(len(digest) == 16 for digest in digests)
