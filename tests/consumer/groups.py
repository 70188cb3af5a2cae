"""Options of a consumer group with Java's defaults, for tests that are about one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rmqd.consumer.allocate import AllocateStrategy, averagely
from rmqd.consumer.consumer_options import ConsumerOptions, Subscription
from rmqd.handler_api.batch import Batch, LoadedHandler

GROUP = "g1"
TOPIC = "t1"
EVERYTHING = Subscription("*", "TAG")

_DEFAULTS = ConsumerOptions(
    group=GROUP,
    local_offsets_directory="",
    subscriptions={TOPIC: EVERYTHING},
    allocate_strategy=AllocateStrategy("averagely", averagely),
    concurrency=20,
    shutdown_timeout_seconds=5.0,
)


def group_options(**values: Any) -> ConsumerOptions:
    """The defaults with some values replaced; `subscriptions` may be a list of topics, or expressions by topic."""
    if "subscriptions" in values:
        values["subscriptions"] = _subscriptions(values["subscriptions"])
    return replace(_DEFAULTS, **values)


def handler_of(function: Callable[..., Any], *, is_async: bool = True) -> LoadedHandler:
    """A handler without start and stop; with `end_calls` if the function has it."""
    return LoadedHandler("testing", function, is_async, None, None, end_calls=getattr(function, "end_calls", None))


class Gathering:
    """A handler whose calls wait until `end_calls` is called."""

    def __init__(self) -> None:
        self.handled = 0
        self.told = 0
        self._end = asyncio.Event()

    async def __call__(self, batch: Batch) -> None:
        await self._end.wait()
        self.handled += len(batch)

    def end_calls(self) -> None:
        self.told += 1
        self._end.set()
        self._end = asyncio.Event()


class Blocked:
    """A handler that waits until `release` is set."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, batch: Batch) -> None:
        await self.release.wait()


def _subscriptions(wanted: list[str] | Mapping[str, str | Subscription]) -> dict[str, Subscription]:
    if isinstance(wanted, list):
        return dict.fromkeys(wanted, EVERYTHING)
    return {
        topic: value if isinstance(value, Subscription) else Subscription(value, "TAG")
        for topic, value in wanted.items()
    }
