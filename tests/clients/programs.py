"""Runs the program of a client library in the library's own environment."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.processes import REPO

HERE = Path(__file__).parent
PATIENCE_S = 900
_OPENAI2 = {"instructor_", "litellm_sdk", "llama_index_openai_like"}
# Every program and its scenarios.
_USUAL = (
    "chat",
    "stream",
    "system_prompt",
    "three_turns",
    "structured_output",
    "tool_call",
    "abstention",
    "rate_limit",
)
SCENARIOS: dict[str, tuple[str, ...]] = {
    "openai_python": (
        *_USUAL,
        *("responses", "responses_structured", "responses_tool_call", "embeddings", "models"),
    ),
    "langchain_openai_": (*_USUAL, "responses"),
    "llama_index_openai_like": _USUAL,
    "litellm_sdk": (*_USUAL, "responses", "embeddings"),
    "pydantic_ai_": (*_USUAL, "responses"),
    "instructor_": ("structured_output", "system_prompt", "three_turns", "stream", "rate_limit"),
    "mcp_client": ("tools", "ask", "search", "older_protocol", "abstention", "rate_limit"),
    "openai_js": (*_USUAL, "responses", "embeddings"),
    "ai_sdk": (*_USUAL, "embeddings"),
}
EVERY = [(client, scenario) for client, scenarios in SCENARIOS.items() for scenario in scenarios]


@dataclass(frozen=True, slots=True)
class Programs:
    """The outcomes of the programs against one gateway; each program runs once, when its first outcome is needed."""

    gateway: dict[str, Any]
    outcomes: dict[str, dict[str, str]]

    def outcome(self, client: str, scenario: str) -> str:
        """The error of this scenario; empty if it passed."""
        if client not in self.outcomes:
            self.outcomes[client] = _run(client, self.gateway)
        return self.outcomes[client].get(scenario, f"it did not run: {self.outcomes[client]}")


def _run(client: str, gateway: dict[str, Any]) -> dict[str, str]:
    gateway = gateway | {"limited": [gateway["limited"][[*SCENARIOS].index(client)]]}
    if (script := HERE / "js" / f"{client}.mjs").exists():
        command = ["node", str(script)]
    else:
        environment = ".venv-clients-openai2" if client in _OPENAI2 else ".venv-clients"
        command = [str(REPO / environment / "bin" / "python"), str(HERE / "python" / f"{client}.py")]
    done = subprocess.run(
        [*command, json.dumps(gateway)], cwd=HERE, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    try:
        outcomes: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"": f"{done.returncode}: {done.stderr[-3000:]}"}
    return outcomes
