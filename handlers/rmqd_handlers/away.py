"""A counterpart that is away: a batch waits for it in place for a while, and only then fails and is retried."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import Field

logger = logging.getLogger(__name__)

RETRY_FOR: Final[Any] = Field(
    "30s",
    description="how long a batch is tried again in place while the other side is away, before it is sent back for a "
    "retry; keep it below consume_timeout",
)
FIRST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 2.0


class AwayError(Exception):
    """The other side is there and asks for time. `wait_seconds` is how long it wants to be left alone at least."""

    def __init__(self, text: str, wait_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.wait_seconds = wait_seconds


async def try_again(
    attempt: Callable[[], Awaitable[None]], away: tuple[type[Exception], ...], retry_for_seconds: float, name: str
) -> None:
    """Call until it succeeds. An error of `away` is tried again until the time is over, and then raised.

    Waits grow from 0.1 to 2 s, beside what an AwayError asks for; each is drawn by chance, so that many batches do not
    come back all at once.
    """
    until = time.monotonic() + retry_for_seconds
    most = FIRST_SECONDS
    is_first = True
    while True:
        try:
            return await attempt()
        except away as error:
            wait_seconds = random.uniform(most / 2, most)
            if isinstance(error, AwayError):
                wait_seconds += error.wait_seconds
            if time.monotonic() + wait_seconds > until:
                raise
            if is_first:
                logger.warning(
                    "handler.counterpart_away", extra={"counterpart": name, "error": str(error) or repr(error)}
                )
            is_first = False
        await asyncio.sleep(wait_seconds)
        most = min(MOST_SECONDS, most * 2)
