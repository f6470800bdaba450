"""One real vLLM on the CPU, started as the gateway starts it, for all tests of this folder."""

import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from app.core import prompts
from app.ports import Prompt
from app.upstream.child import ChildServer
from app.upstream.readers.openai import OpenAIReader
from app.upstream.readers.servers import vllm_server

MODEL = "smollm2"
CONTEXT = 2048
ARGUMENTS = (
    *("--served-model-name", MODEL),
    *("--dtype", "float32"),
    # No compilation: on a CPU it takes minutes and gains little for short answers.
    "--enforce-eager",
    *("--block-size", "32"),
    *("--max-model-len", str(CONTEXT)),
    # Without it vLLM refuses requests in which the model may choose a tool.
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
# One gigabyte of cache; without a number vLLM takes most of the memory.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}

MakeReader = Callable[..., OpenAIReader]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChildServer]:
    """A vLLM that has answered once: the first answer after a start takes many times longer than the next."""
    server = vllm_server(
        os.environ["TEST_VLLM_MODEL"],
        log_path=tmp_path_factory.mktemp("vllm") / "vllm.log",
        extra_args=ARGUMENTS,
        env=ENVIRONMENT,
        python=os.environ["TEST_VLLM_PYTHON"],
    )
    url = await server.start()
    warm_up = OpenAIReader(url, MODEL, prompts=prompts.DEFAULT, timeout_s=300)
    await warm_up.generate(Prompt("What is the capital of France?"), max_tokens=24)
    await warm_up.close()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def make_reader(vllm: ChildServer) -> AsyncIterator[MakeReader]:
    """Make readers of the running vLLM; closed at the end."""
    made: list[OpenAIReader] = []

    def make(model: str = MODEL, **options: Any) -> OpenAIReader:
        defaults: dict[str, Any] = {"prompts": prompts.DEFAULT, "timeout_s": 300}
        made.append(OpenAIReader(vllm.url, model, **(defaults | options)))
        return made[-1]

    yield make
    for reader in made:
        await reader.close()


@pytest_asyncio.fixture(loop_scope="session")
async def reader(make_reader: MakeReader) -> OpenAIReader:
    """A reader as the gateway makes it."""
    return make_reader()
