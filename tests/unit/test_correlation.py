"""The context of a request."""

from app.correlation import RequestContext, current, set_question


def test_only_texts_that_say_something_are_removed_from_the_log() -> None:
    """An empty message would match everywhere, and one like `ok` inside of words."""
    note = RequestContext("request")
    token = current.set(note)
    try:
        set_question("Who?", "", "ok", "Where is she?")
    finally:
        current.reset(token)
    assert (note.question, note.earlier) == ("Who?", ("Where is she?",))
