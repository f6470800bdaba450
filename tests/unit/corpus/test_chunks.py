"""Splitting text into passages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.corpus.chunks import MAX_SENTENCE_WORDS, MAX_WORDS, MIN_WORDS, Section, chunk, markdown_sections

words = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=8)
sentences = st.lists(words, min_size=1, max_size=220).map(lambda some: " ".join(some).capitalize() + ".")
texts = st.lists(st.tuples(sentences, st.sampled_from([" ", "\n", "\n\n", " \t\n  \n"])), max_size=12).map(
    lambda parts: "".join(sentence + space for sentence, space in parts)
)


def sentence(length: int, first: str = "Word") -> str:
    return " ".join([first] + ["word"] * (length - 2) + ["end."])


@given(st.one_of(texts, st.text()))
def test_no_word_is_lost_or_moved(text: str) -> None:
    """The passages contain the words of the text, in order."""
    assert [word for passage in chunk(text) for word in passage.split()] == text.split()


@given(texts)
def test_sizes_are_bounded(text: str) -> None:
    """No passage is too long, and none is too short unless the whole text is."""
    lengths = [len(passage.split()) for passage in chunk(text)]
    assert all(length <= MAX_WORDS for length in lengths)
    assert all(length >= min(MIN_WORDS, len(text.split())) for length in lengths)


@given(texts)
def test_splitting_is_deterministic(text: str) -> None:
    """The same text is always split in the same way, whatever its white space."""
    assert chunk(text) == chunk(text)
    assert all(passage == " ".join(passage.split()) for passage in chunk(text))


@given(st.lists(st.integers(2, MAX_SENTENCE_WORDS), min_size=1, max_size=20))
def test_no_sentence_is_split(lengths: list[int]) -> None:
    """Every passage ends at the end of a sentence unless a sentence is too long."""
    text = " ".join(sentence(length, f"Sentence{i}") for i, length in enumerate(lengths))
    passages = chunk(text)
    assert all(passage.endswith("end.") for passage in passages)
    assert sum(passage.count("Sentence") for passage in passages) == len(lengths)


def test_about_a_hundred_words() -> None:
    """Ordinary prose becomes passages of about a hundred words."""
    lengths = [len(passage.split()) for passage in chunk(" ".join([sentence(18)] * 50))]
    assert lengths == [90] * 10


def test_sentence_that_is_too_long_is_split_evenly() -> None:
    """Only a sentence that is too long is split, into parts of similar size."""
    assert [len(passage.split()) for passage in chunk(sentence(250))] == [83, 83, 84]
    assert len(chunk(sentence(MAX_SENTENCE_WORDS))) == 1


def test_short_tail_joins_the_previous_passage() -> None:
    """No passage of a few words remains at the end."""
    assert [len(passage.split()) for passage in chunk(f"{sentence(95)} {sentence(20)}")] == [115]


@pytest.mark.parametrize("text", ["", " \n\t ", "\n\n\n"])
def test_white_space_makes_no_passage(text: str) -> None:
    """A text of white space has no passages."""
    assert chunk(text) == []


@pytest.mark.parametrize(
    "name", ["Dr. Smith", "J. R. R. Tolkien", "the U.S. Navy", "St. Petersburg", "Acme Inc. Ltd", "(cf. Darwin)"]
)
def test_abbreviation_does_not_end_a_sentence(name: str) -> None:
    """The full stop of an abbreviation is not the end of a sentence."""
    text = f"{sentence(70)} {' '.join(['Then'] + ['word'] * 40)} {name} {' '.join(['word'] * 40)} end."
    assert [passage.endswith("end.") for passage in chunk(text)] == [True, True]


def test_paragraph_ends_a_sentence() -> None:
    """A heading or a list item without a full stop is a sentence of its own."""
    first, second = " ".join(["one"] * 80), " ".join(["two"] * 80)
    assert chunk(f"{first}\n\n{second}") == [first, second]


def test_sections_carry_their_headings() -> None:
    """Each section carries the headings above it, but not those of finished sections."""
    text = "before\n# Moon #\nrock\n## Far side\ndark\n### Crater\nround\n## Near side\nbright\n# C#\nsharp\n"
    assert list(markdown_sections(text)) == [
        Section((), "before"),
        Section(("Moon",), "rock"),
        Section(("Moon", "Far side"), "dark"),
        Section(("Moon", "Far side", "Crater"), "round"),
        Section(("Moon", "Near side"), "bright"),
        Section(("C#",), "sharp\n"),
    ]


def test_underlined_headings() -> None:
    """A line of = or - marks the text above it as a heading; a rule or a table is not a heading."""
    text = "Moon\n====\nrock\n\nFar side\n--------\ndark\n\n---\n\n| a |\n---\nstill dark"
    assert [section.headings for section in markdown_sections(text)] == [("Moon",), ("Moon", "Far side")]


def test_comment_in_code_is_not_a_heading() -> None:
    """A comment in a fenced block is text, even if the block contains other fences."""
    (section,) = markdown_sections("# Install\n````sh\n```\n# not a heading\n````\ndone")
    assert section.headings == ("Install",)
    assert "# not a heading" in section.text


def test_front_matter_is_skipped() -> None:
    """The block between dashes at the top describes the file and is not part of the text."""
    assert list(markdown_sections("---\ntitle: x\ntags: [a]\n---\nrock")) == [Section((), "rock")]


def test_heading_without_text_makes_no_section() -> None:
    """A heading without text below it is not a section."""
    assert list(markdown_sections("# A\n## B\n\n#\n")) == []


@given(st.text(st.sampled_from("ab #=-`~\n|>.")))
def test_any_text_can_be_split(text: str) -> None:
    """Any text is split without an error, into sections that are not empty."""
    assert all(section.text.strip() for section in markdown_sections(text))
