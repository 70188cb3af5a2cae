"""A counterpart that is away: a batch waits for it in place for a while, and then in its queue."""

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
    description="how long a batch is tried again in place while the other side is away, before it waits in its queue; "
    "keep it below consume_timeout",
)
FIRST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 2.0


class AwayError(Exception):
    """The other side is there and asks for time. `wait_seconds` is how long it wants to be left alone at least.

    `is_attempt` tells whether the attempt counts all the same, because the options say so.
    """

    def __init__(self, text: str, wait_seconds: float = 0.0, *, is_attempt: bool = False) -> None:
        super().__init__(text)
        self.wait_seconds = wait_seconds
        self.is_attempt = is_attempt


class ChangedError(Exception):
    """What an attempt relied on has changed, such as a table: the attempt begins again at once."""


def mark_waiting(error: Exception, seconds: float = MOST_SECONDS) -> None:
    """Have the error say that the messages wait in their queue for so long, and that no attempt counts.

    For any error that is not about the values of a message, see `faults`.
    """
    if not (isinstance(error, AwayError) and error.is_attempt):
        setattr(error, "rmqd_wait_seconds", seconds)  # noqa: B010  rmqd reads it of any exception


def report(error: object, name: str) -> None:
    """Log that the counterpart is away, or refuses everything."""
    logger.warning("handler.counterpart_away", extra={"counterpart": name, "error": str(error) or repr(error)})


async def try_again(
    attempt: Callable[[], Awaitable[None]],
    state: tuple[type[Exception], ...],
    retry_for_seconds: float,
    name: str,
    may_pass: Callable[[Any], bool] = lambda _: True,
) -> None:
    """Call until it succeeds. An error of `state` that may pass is tried again until the time is over.

    Then it is raised, and others of `state` at once: the messages wait in their queue, and no attempt counts. Pauses
    grow from 0.1 to 2 s, beside what an AwayError asks for; each is drawn by chance, so that many batches do not come
    back all at once.
    """
    until = time.monotonic() + retry_for_seconds
    most = FIRST_SECONDS
    is_first = True
    while True:
        try:
            return await attempt()
        except ChangedError:
            continue
        except state as error:
            wait_seconds = random.uniform(most / 2, most)
            if isinstance(error, AwayError):
                wait_seconds += error.wait_seconds
            if is_first:
                report(error, name)
            is_first = False
            if time.monotonic() + wait_seconds > until or not may_pass(error):
                mark_waiting(error, max(wait_seconds, MOST_SECONDS))
                raise
        await asyncio.sleep(wait_seconds)
        most = min(MOST_SECONDS, most * 2)
