"""A small Dockerfile parser for tests: stages, and the steps of each."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, with continuation lines joined."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments without flags: a JSON list as it is, otherwise split as a shell does."""
        rest = re.sub(r"^(--\S+\s+)+", "", self.text)
        return json.loads(rest) if rest.startswith("[") else shlex.split(rest)

    @property
    def source_stage(self) -> str | None:
        """The stage that a COPY reads from, or None for the build context."""
        found = re.match(r"--from=(\S+)", self.text)
        return found[1] if found else None

    @property
    def command(self) -> str:
        """The shell command of a RUN, without its mounts."""
        return re.sub(r"^(--mount=\S+\s+)+", "", self.text)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage with the stages that it is based on, first to last."""

    name: str
    image: str
    steps: list[Step] = field(default_factory=list)

    def all(self, name: str) -> list[Step]:
        """The instructions of one kind."""
        return [step for step in self.steps if step.name == name]

    def environment(self) -> dict[str, str]:
        """The variables that its ENV instructions set."""
        pairs = [word.partition("=") for step in self.all("ENV") for word in step.words]
        return {name: value for name, _, value in pairs}


def stages(path: Path = ROOT / "Dockerfile") -> dict[str, Stage]:
    """Every stage by name, including the steps of the stages below it."""
    found: dict[str, Stage] = {}
    current: Stage | None = None
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, text = line.strip().partition(" ")
        if name == "FROM":
            image, _, stage = text.split()
            below = found.get(image)
            current = Stage(stage, below.image if below else image, [*below.steps] if below else [])
            found[stage] = current
        elif name:
            assert current is not None, line
            current.steps.append(Step(name, text.strip()))
    return found


def pip_installs(commands: str) -> list[list[str]]:
    """The arguments of each `pip install` in a shell command, without those that say where packages come from."""
    installs = []
    for command in re.split(r"&&|\|\|", commands):
        words = shlex.split(re.sub(r"\$\{\w+:\+[^}]*\}", "", command))
        if words[:2] == ["pip", "install"]:
            installs.append(words[2:])
    return installs
