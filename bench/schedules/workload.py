"""What is asked, and how each question would go: made up at a skip rate, or replayed from an outcome table."""

from dataclasses import dataclass, field

import numpy as np

from bench.schedules.readers import EXIT_AT, PROMPTS, Reader, lengths


@dataclass(frozen=True, slots=True)
class Workload:
    """One entry a question; `k` is what a whole probe decides."""

    k: list[int]
    prompts: dict[int, list[int]]
    tokens: dict[int, list[int]]
    retrieval_ms: dict[int, float]
    # After how many tokens an exit cuts the probe, None for never, and how many passages are then read.
    exit_at: list[int | None]
    exit_k: list[int]
    # How many passages the pre-gate sends a question to without a probe; 0: it is probed.
    sent: list[int]
    embed_ms: float = 0.0
    # Whether the answer with so many passages is right; empty where a regime is made up.
    right: dict[int, list[bool]] = field(default_factory=dict)
    reference: int = 5

    def __len__(self) -> int:
        """How many questions."""
        return len(self.k)


def made_up(
    reader: Reader,
    *,
    skip: float,
    questions: int,
    rng: np.random.Generator,
    caught: float = 0.0,
    exit_at: int = EXIT_AT,
    ret_over_ob: float | None = None,
    warm_up: int = 0,
) -> Workload:
    """Questions of which the share `skip` needs no passage, in random order, and exits that catch the share `caught`.

    After the warm-up, which is drawn question by question, shares are met exactly, so that no schedule is lucky.
    Retrieval takes the paper's time, or `ret_over_ob` of what reading five passages takes.
    """
    counted = questions - warm_up
    # Places in line: the first of them skip, the next are cut, and the rest reads five passages after a whole probe.
    place = np.concatenate([rng.random(warm_up), (rng.permutation(counted) + 0.5) / counted])
    skips = place < skip
    cut = ~skips & (place < skip + caught * (1.0 - skip))
    retrieval = reader.costs.ret5 if ret_over_ob is None else ret_over_ob * reader.costs.ob5
    return Workload(
        k=np.where(skips, 0, 5).tolist(),
        prompts={passages: [length] * questions for passages, length in PROMPTS.items()},
        tokens={passages: lengths(mean, questions) for passages, mean in reader.tokens.items()},
        retrieval_ms={1: retrieval, 5: retrieval},
        exit_at=[exit_at if one else None for one in cut.tolist()],
        exit_k=[5] * questions,
        sent=[0] * questions,
    )
