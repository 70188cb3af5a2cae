"""Retries requests while brokers or name servers are unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from rmqd.errors import (
    DataLossError,
    FilterRefusedError,
    LightQueueError,
    RmqdError,
    RouteNotFoundError,
    StaticTopicError,
    UnknownTopicKindError,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETRY_SECONDS: Final = 0.5
# final errors: waiting does not create a topic, change its type or bring a message back
ANSWERS: Final = (
    RouteNotFoundError, DataLossError, FilterRefusedError, LightQueueError, StaticTopicError, UnknownTopicKindError,
)  # fmt: skip


def patiently(ask: Callable[[], T], seconds: float) -> T:
    """Call `ask`, and repeat it while it raises an RmqdError, for a limited time. Raises the last error."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except ANSWERS:
            raise
        except RmqdError as error:
            if time.monotonic() + RETRY_SECONDS > until:
                raise
            log.warning("spark.request_retried", error=str(error))
        time.sleep(RETRY_SECONDS)
