"""A reader that batches as vLLM does, simulated step by step.

In a step every answer at hand grows by one token, and what is left of the step's token budget reads waiting prompts,
first come first served and in chunks. A step of `batch` answers and `prompt` new prompt tokens takes
fixed + per_answer * batch + per_prompt_token * prompt milliseconds. What arrives or is cancelled within a step takes
effect at its end; a cancelled answer gives its place and its memory back there.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class StepModel:
    """How long a step takes, in milliseconds, and what fits into one."""

    fixed: float
    per_answer: float
    per_prompt_token: float
    budget: int = 2048
    max_answers: int = 256
    # Tokens of all prompts and answers at hand that the memory holds.
    memory: int = 370_000

    def alone(self, prompt: float, answer: float) -> float:
        """How long a generation takes by itself, its prompt read in one step."""
        return answer * (self.fixed + self.per_answer) + prompt * self.per_prompt_token


class Generation:
    """One prompt and its answer; `stop_at` ends it after so many tokens, before it is `answer` long.

    The first `cached` tokens of the prompt were read before, and need not be again.
    """

    __slots__ = ("answer", "began", "cached", "first_step", "on_end", "over", "prompt", "stop_at", "unread")

    def __init__(
        self, prompt: int, answer: int, on_end: Callable[[], None], *, stop_at: int | None = None, cached: int = 0
    ) -> None:
        self.prompt, self.answer, self.on_end = prompt, answer, on_end
        self.stop_at = answer if stop_at is None else min(answer, stop_at)
        self.unread, self.cached = prompt - cached, cached
        # Whether it has a place and memory, the step that its first token came of, and whether nothing more will come.
        self.began, self.first_step, self.over = False, 0, False


class Engine:
    """The reader. `ends` is when the step at hand does; whoever drives it calls `finish` then."""

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self.ends = NEVER
        self.prompt_tokens = self.answer_tokens = 0
        self._step = 0
        self._answering = self._places = 0
        self._memory = model.memory
        self._waiting: deque[Generation] = deque()
        self._read: list[Generation] = []
        self._due: defaultdict[int, list[Generation]] = defaultdict(list)
        self._finishing = False

    def submit(self, generation: Generation, now: float) -> None:
        """Take a generation in; an idle reader begins at once."""
        self._waiting.append(generation)
        if self.ends == NEVER and not self._finishing:
            self._begin(now)

    def cancel(self, generation: Generation) -> int:
        """Give a generation up, and return the tokens that were spent on it."""
        if generation.over:
            return 0
        generation.over = True
        if generation.first_step:
            self._answering -= 1
        if generation.began:
            self._give_back(generation)
        answered = self._step - generation.first_step + 1 if generation.first_step else 0
        return generation.prompt - generation.unread - generation.cached + answered

    def finish(self) -> None:
        """End the step at hand, tell those whose answer is complete, and begin the next."""
        now = self.ends
        self.ends = NEVER
        self._step += 1
        for generation in self._read:
            if not generation.over:
                generation.first_step = self._step
                self._answering += 1
                self._due[self._step + generation.stop_at - 1].append(generation)
        self.answer_tokens += self._answering
        self._finishing = True
        for generation in self._due.pop(self._step, ()):
            if not generation.over:
                generation.over = True
                self._answering -= 1
                self._give_back(generation)
                generation.on_end()
        self._finishing = False
        self._begin(now)

    def _begin(self, now: float) -> None:
        model, budget = self.model, self.model.budget - self._answering
        batch, read = self._answering, 0
        self._read = []
        waiting = self._waiting
        while waiting and budget > 0:
            generation = waiting[0]
            if generation.over:
                waiting.popleft()
                continue
            if not generation.began and not self._take_place(generation):
                break
            part = min(budget, generation.unread)
            generation.unread -= part
            budget -= part
            read += part
            batch += 1
            if generation.unread:
                break
            waiting.popleft()
            self._read.append(generation)
        if batch:
            self.prompt_tokens += read
            self.ends = now + model.fixed + model.per_answer * batch + model.per_prompt_token * read

    def _take_place(self, generation: Generation) -> bool:
        needed = generation.prompt + generation.answer
        if self._places >= self.model.max_answers or self._memory < needed:
            return False
        generation.began = True
        self._places += 1
        self._memory -= needed
        return True

    def _give_back(self, generation: Generation) -> None:
        self._places -= 1
        self._memory += generation.prompt + generation.answer
