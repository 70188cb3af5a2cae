"""Retries in place while a handler's counterpart, such as a database, is unavailable; and decisions about messages."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Literal, TypeVar

from rmqd import Batch, Message
from rmqd_handlers.message_values import InvalidBodyError, ParsedMessage
from rmqd_handlers.option_kinds import option

T = TypeVar("T")
logger = logging.getLogger(__name__)

RETRY_FOR: Final[Any] = option(
    "30s",
    "how long a batch is retried in place while the other side is unavailable; then it waits in its queue; "
    "keep it below consume_timeout",
)
FIRST_SECONDS: Final = 0.1
MAX_SECONDS: Final = 2.0


class CounterpartUnavailableError(Exception):
    """A counterpart, such as a database, is unavailable. The next attempt must wait for at least `wait_seconds`.

    With `is_attempt`, the failure counts as an attempt of the message, because the handler's options say so.
    """

    def __init__(self, text: str, wait_seconds: float = 0.0, *, is_attempt: bool = False) -> None:
        super().__init__(text)
        self.wait_seconds = wait_seconds
        self.is_attempt = is_attempt


class TargetChangedError(Exception):
    """An object that an attempt relies on has changed, such as a table. `try_again` restarts the attempt at once."""


def mark_waiting(error: Exception, seconds: float = MAX_SECONDS) -> None:
    """Mark an error, so that the messages wait in their queue for `seconds`, and no attempt is counted.

    Use this for any error that is not caused by the values of a message: see `faults`.
    """
    if not (isinstance(error, CounterpartUnavailableError) and error.is_attempt):
        setattr(error, "rmqd_wait_seconds", seconds)  # noqa: B010  rmqd reads it from any exception


async def try_again(
    attempt: Callable[[], Awaitable[None]],
    state: tuple[type[Exception], ...],
    retry_for_seconds: float,
    name: str,
    may_pass: Callable[[Any], bool] = lambda _: True,
) -> None:
    """Call `attempt` until it succeeds, for at most `retry_for_seconds`. Errors of the classes `state` are retried.

    The last error, or an error that `may_pass` rejects, is raised with `mark_waiting`: the messages then wait in their
    queue, and no attempt is counted. Waits between attempts grow from 0.1 to 2 s, plus the `wait_seconds` of an
    AwayError. They are random, so that many batches are not retried at the same moment.
    """
    until = time.monotonic() + retry_for_seconds
    most = FIRST_SECONDS
    is_first = True
    while True:
        try:
            return await attempt()
        except TargetChangedError:
            continue
        except state as error:
            wait_seconds = random.uniform(most / 2, most)
            if isinstance(error, CounterpartUnavailableError):
                wait_seconds += error.wait_seconds
            if is_first:
                extra = {"counterpart": name, "error": str(error) or repr(error)}
                logger.warning("handler.counterpart_away", extra=extra)
            is_first = False
            if time.monotonic() + wait_seconds > until or not may_pass(error):
                mark_waiting(error, max(wait_seconds, MAX_SECONDS))
                raise
        await asyncio.sleep(wait_seconds)
        most = min(MAX_SECONDS, most * 2)


OnInvalid = Literal["dead_letter", "retry", "skip"]
ON_INVALID: Final[Any] = option(
    "dead_letter", "how to settle a message that cannot be written as it is: dead_letter, retry or skip"
)


def refuse(batch: Batch, message: Message, why: object, on_invalid: OnInvalid) -> None:
    """Dead-letter, retry or skip a message that cannot be written. The reason `why` is stored or logged."""
    if on_invalid == "dead_letter":
        batch.dead_letter(message, why)
    elif on_invalid == "retry":
        batch.retry(message, reason=why)
    else:
        logger.warning("handler.skipped", extra={"msg_id": message.msg_id, "reason": str(why)})
        batch.ack(message)


def valid(batch: Batch, make: Callable[[ParsedMessage], T], on_invalid: OnInvalid) -> list[tuple[Message, T]]:
    """Return each message with the result of `make`. If `make` raises InvalidBodyError, the message is refused."""
    made = []
    for message in batch:
        try:
            made.append((message, make(ParsedMessage(message))))
        except InvalidBodyError as error:
            refuse(batch, message, error, on_invalid)
    return made


def acknowledge_written(batch: Batch, waiting: Collection[Message] = ()) -> None:
    """If some messages are retried or `waiting`, acknowledge the other undecided messages, because they were written.

    Otherwise an orderly group would handle the undecided messages after a retried message again, and write them twice.
    """
    decided = batch.decisions()
    if waiting or any(one.outcome.value == "retry" for one in decided.values()):
        left_out = set(map(id, waiting))
        for message in [message for index, message in enumerate(batch) if index not in decided]:
            if id(message) not in left_out:
                batch.ack(message)
