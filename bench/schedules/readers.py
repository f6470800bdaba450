"""The two readers of the paper, as step models fitted to its batch-1 figures.

The paper gives milliseconds (closed-book, one passage, five passages) and a token account: 306 tokens a question at
35 % retrieval, 24 of them generated at most, so 282 = closed-book prompt + 0.35 * open-book prompt. With passages of
about 100 words, 130 tokens, that is a prompt of 40 tokens for the question, 170 with one passage, 690 with five. From
there each figure follows:

    per prompt token   (ob5 - ob1) / 520
    a step             (cb - 40 per prompt token) / tokens of a closed-book answer
    open-book tokens   (ob5 - 690 per prompt token) / a step

How long answers are is not said. Six tokens are assumed, so that an exit after two has spent a third; the two models'
speed at prompts (450 and 550 TFLOP/s) and at steps is then that of one large GPU. What a batch costs cannot be told
from batch 1: an answer's token is taken to cost twice a prompt's, for its arithmetic and for reading its memory.
"""

import math
from dataclasses import dataclass

from app.decision.cost import Costs
from bench.schedules.engine import StepModel

QUESTION, PASSAGE = 40, 130
PROMPTS = {0: QUESTION, 1: QUESTION + PASSAGE, 5: QUESTION + 5 * PASSAGE}
CLOSED_BOOK_TOKENS = 6
# After this many tokens a hopeless probe is cut.
EXIT_AT = 2
ANSWER_OVER_PROMPT_TOKEN = 2.0


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader: its figures at batch 1, the step model that yields them, and the mean length of its answers."""

    name: str
    costs: Costs
    skip: float
    steps: StepModel
    tokens: dict[int, float]


def step_model(
    step: float, per_prompt_token: float, *, answer_over_prompt: float = ANSWER_OVER_PROMPT_TOKEN, **room: int
) -> StepModel:
    """A model whose steps take so long at batch 1; what each answer adds to one is never more than all of it."""
    per_answer = min(step, answer_over_prompt * per_prompt_token)
    return StepModel(step - per_answer, per_answer, per_prompt_token, **room)


def fitted(
    name: str,
    costs: Costs,
    skip: float,
    memory: int,
    *,
    tokens: int = CLOSED_BOOK_TOKENS,
    answer_over_prompt: float = ANSWER_OVER_PROMPT_TOKEN,
) -> Reader:
    """Solve the three equations above."""
    per_prompt_token = (costs.ob5 - costs.ob1) / (PROMPTS[5] - PROMPTS[1])
    step = (costs.cb - PROMPTS[0] * per_prompt_token) / tokens
    open_book = (costs.ob5 - PROMPTS[5] * per_prompt_token) / step
    steps = step_model(step, per_prompt_token, answer_over_prompt=answer_over_prompt, memory=memory)
    return Reader(name, costs, skip, steps, {0: tokens, 1: open_book, 5: open_book})


def assuming(reader: Reader, *, tokens: int, answer_over_prompt: float) -> Reader:
    """The same reader fitted under other assumptions."""
    return fitted(
        reader.name,
        reader.costs,
        reader.skip,
        reader.steps.memory,
        tokens=tokens,
        answer_over_prompt=answer_over_prompt,
    )


# Milliseconds of the paper's table of costs; the memory left beside the weights on 80 and on 160 GB.
SMALL = fitted("8B", Costs(64.6, 27.5, 61.4, 27.5, 80.0), 0.335, 370_000)
LARGE = fitted("32B", Costs(161.1, 27.5, 257.0, 27.5, 319.0), 0.542, 300_000)


def lengths(mean: float, count: int) -> list[int]:
    """Whole numbers of tokens with that mean, the two nearest to it, spread evenly."""
    low = math.floor(mean)
    share = mean - low
    return [low + (math.floor((i + 1) * share) - math.floor(i * share)) for i in range(count)]
