"""Pauses between the pulls and pops of a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from rmqd.backoff import doubled, spread
from rmqd.broker_errors import FlowControlError, GoAwayError, SystemBusyError
from rmqd.consumer.context import GroupContext
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

T = TypeVar("T")

EXCEPTION_DELAY_SECONDS: Final = 1.0  # Java: pullTimeDelayMillsWhenException
BROKER_FLOW_CONTROL_SECONDS: Final = 0.02  # Java: PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL
UNHELD_DELAY_SECONDS: Final = 0.1
MOST_UNHELD_SECONDS: Final = 1.0
MOST_FLOW_CONTROL_SECONDS: Final = 1.0
MOST_BUSY_SECONDS: Final = 8.0


def after_error() -> float:
    """Return the pause after an unspecified failure, in seconds."""
    return spread(EXCEPTION_DELAY_SECONDS)


async def until_answered(context: GroupContext, queue: MessageQueue, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `ask`, which is called until it raises no RmqdError: the queue cannot start without it."""
    while True:
        try:
            return await ask()
        except RmqdError as error:
            if not error.is_reported:
                _note(context, queue, error)
            context.client.routes.refresh_soon([queue.topic])
            await context.clock.sleep(after_error())


def _note(context: GroupContext, queue: MessageQueue, error: RmqdError) -> None:
    """Log a failed start, in one line for all queues of the broker that failed within a second."""
    broker = context.client.routes.endpoint(queue)
    failures = context.start_failures.setdefault(broker, {})
    if not failures:
        context.clock.call_later(EXCEPTION_DELAY_SECONDS, _tell, context, broker)
    failures[queue] = error


def _tell(context: GroupContext, broker: str) -> None:
    failures = context.start_failures.pop(broker)
    queue, error = next(iter(failures.items()))
    log.warning("queue.start_failed", broker=broker, queue=str(queue), queues=len(failures), error=str(error))


class PullBackoff:
    """Chooses the pause before one queue's next request. It grows while responses stay the same."""

    def __init__(self) -> None:
        self._refusals = 0  # consecutive refusals
        self._went_away = False  # whether the last response said that the broker is shutting down
        self._unheld = 0

    def answered(self) -> None:
        """Called when the broker returned messages, or held the pull until there were some."""
        self._refusals = self._unheld = 0
        self._went_away = False

    def after_nothing(self) -> float:
        """Return the pause after an immediate empty response, as from a broker that shuts down or a slave that lags."""
        self._unheld += 1
        return doubled(UNHELD_DELAY_SECONDS, self._unheld, MOST_UNHELD_SECONDS)

    def after(self, error: RmqdError, *, at_master: bool) -> float:
        """Return the pause after a failure in seconds. Random, so that the queues of a broker do not all pull at once.

        A slave that must not be read (slaveReadEnable: false) responds "busy". That does not lengthen the pause,
        because its master may return at any moment.
        """
        if isinstance(error, GoAwayError):
            is_first, self._went_away = not self._went_away, True
            return 0.0 if is_first else after_error()
        if isinstance(error, FlowControlError):
            self._refusals += 1
            return doubled(BROKER_FLOW_CONTROL_SECONDS, self._refusals, MOST_FLOW_CONTROL_SECONDS)
        if isinstance(error, SystemBusyError) and at_master:
            self._refusals += 1
            return spread(doubled(EXCEPTION_DELAY_SECONDS, self._refusals, MOST_BUSY_SECONDS))
        return after_error()
