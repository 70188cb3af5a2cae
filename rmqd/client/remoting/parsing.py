"""Parses large bodies in a thread, so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

MOST_BYTES_HERE: Final = 32 * 1024  # fastjson's dialect is parsed at about one byte per microsecond


async def parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    """Return the result of `parse(body)`, or raise its error. Only a large body is parsed in another thread."""
    if len(body) <= MOST_BYTES_HERE:
        return parse(body)
    return await asyncio.get_running_loop().run_in_executor(_thread(), parse, body)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """Return rmqd's own thread, as handlers may fill asyncio's executor. One body at a time limits the memory."""
    return ThreadPoolExecutor(1, "rmqd-parsing")
