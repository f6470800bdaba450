"""A full run: one question answered with every k, for outcome tables and shadow runs alike."""

from collections.abc import Sequence

from app.core.artifact import Identity
from app.core.available import Passage
from app.core.record import Outcome
from app.core.signals import extract
from app.errors import NoPassages
from app.ports import Clock, Embedder, Prompt, Reader, Retriever


async def full_run(
    text: str,
    ks: Sequence[int],
    *,
    reader: Reader,
    embedder: Embedder,
    retriever: Retriever,
    identity: Identity,
    clock: Clock,
) -> tuple[Sequence[Passage], dict[int, Outcome]]:
    """Answer a question with each number of passages, one after the other, so that the timings do not overlap.

    Raises NoPassages if the search finds nothing: a closed-book answer must not be recorded as one from passages.
    """
    started = clock()
    passages = await retriever.search(identity.collection, await embedder.embed_query(text), limit=max(ks))
    found_ms = (clock() - started) * 1000.0
    if not passages:
        raise NoPassages("no passage found, so there is nothing to read")
    outcomes = {}
    for k in ks:
        started = clock()
        generation = await reader.generate(Prompt(text, tuple(passages[:k])), max_tokens=identity.max_tokens)
        outcomes[k] = Outcome(
            answer=generation.text,
            signals=extract(generation.tokens),
            prompt_tokens=generation.prompt_tokens,
            completion_tokens=generation.completion_tokens,
            passages_read=generation.passages_read,
            ms=(clock() - started) * 1000.0 + (found_ms if k else 0.0),
        )
    return passages, outcomes
