"""Threads for calls to databases: a server that does not answer holds up these, and nothing else in the process."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Each kind of background work uses one at a time; the others are for requests.
_POOL = ThreadPoolExecutor(16, thread_name_prefix="storage")


async def in_storage_thread(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """As `asyncio.to_thread`, for calls that may wait for a database."""
    bound = partial(copy_context().run, call, *arguments, **options)
    return await asyncio.get_running_loop().run_in_executor(_POOL, bound)
