"""A full run: one question answered with every k, for outcome tables and shadow runs alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.core.artifact import Identity
from app.core.available import Answer, Available, Passage, Usage
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.record import Outcome
from app.core.signals import extract
from app.errors import NoPassages
from app.ports import Clock, Embedder, Prompt, Reader, Retriever


@dataclass(frozen=True, slots=True)
class FullAnswers:
    """What a full run found: the question's vector, the passages, the answer at every k, and the evidence of all."""

    vector: Sequence[float]
    passages: tuple[Passage, ...]
    outcomes: Mapping[int, Outcome]
    evidence: Mapping[str, float]


async def full_run(
    text: str,
    ks: Sequence[int],
    *,
    reader: Reader,
    embedder: Embedder,
    retriever: Retriever,
    identity: Identity,
    clock: Clock,
    stats: CorpusStats = NO_STATS,
) -> FullAnswers:
    """Answer a question with each number of passages, one after the other, so that the timings do not overlap.

    Raises NoPassages if the search finds nothing: a closed-book answer must not be recorded as one from passages.
    """
    started = clock()
    vector = await embedder.embed_query(text)
    passages = await retriever.search(identity.collection, vector, limit=max(ks))
    found_ms = (clock() - started) * 1000.0
    if not passages:
        raise NoPassages("no passage found, so there is nothing to read")
    available, outcomes = Available.at_first(text, stats, vector).found(passages), dict[int, Outcome]()
    for k in ks:
        started = clock()
        said = await reader.generate(Prompt(text, tuple(passages[:k])), max_tokens=identity.max_tokens)
        ms = (clock() - started) * 1000.0 + (found_ms if k else 0.0)
        usage, signals = Usage(said.prompt_tokens, said.completion_tokens), extract(said.tokens)
        answer = Answer(k, said.text, signals, usage, passages_read=said.passages_read, truncated=said.truncated)
        available = available.answered(answer)
        outcomes[k] = Outcome(
            answer=answer.text,
            signals=signals,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            passages_read=answer.passages_read,
            ms=ms,
            truncated=answer.truncated,
        )
    return FullAnswers(vector, tuple(passages), outcomes, available.evidence)
