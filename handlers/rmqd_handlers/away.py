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


async def try_again(
    attempt: Callable[[], Awaitable[None]], away: tuple[type[Exception], ...], retry_for_seconds: float, name: str
) -> None:
    """Call until it succeeds. An error of `away` is tried again until the time is over, and then raised.

    Waits grow from 0.1 to 2 s; each is drawn by chance, so that many batches do not come back all at once.
    """
    until = time.monotonic() + retry_for_seconds
    most = FIRST_SECONDS
    is_first = True
    while True:
        try:
            return await attempt()
        except away as error:
            wait_seconds = random.uniform(most / 2, most)
            if time.monotonic() + wait_seconds > until:
                raise
            if is_first:
                logger.warning("handler.counterpart_away", extra={"counterpart": name, "error": str(error)})
            is_first = False
        await asyncio.sleep(wait_seconds)
        most = min(MOST_SECONDS, most * 2)
