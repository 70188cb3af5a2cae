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
    namespace="",
    message_model="clustering",
    local_offsets_directory="",
    consume_mode="concurrently",
    order_by="",
    subscriptions={TOPIC: EVERYTHING},
    consume_from_where="last_offset",
    consume_timestamp_ms=None,
    allocate_strategy=AllocateStrategy("averagely", averagely),
    concurrency=20,
    auto_concurrency=False,
    hooks="all",
    consume_message_batch_max_size=1,
    consume_message_batch_max_wait_seconds=0.0,
    consume_timeout_seconds=900.0,
    max_reconsume_times=-1,
    delay_level_when_next_consume=0,
    auto_commit=True,
    suspend_current_queue_time_seconds=1.0,
    pull_batch_size=32,
    pull_interval_seconds=0.0,
    pull_threshold_for_queue=1000,
    pull_threshold_size_for_queue_bytes=100 << 20,
    pull_threshold_for_topic=-1,
    pull_threshold_size_for_topic_bytes=-1,
    consume_concurrently_max_span=2000,
    persist_consumer_offset_interval_seconds=5.0,
    shutdown_timeout_seconds=5.0,
    queue_handover_timeout_seconds=5.0,
    pop_invisible_time_seconds=60.0,
    pop_batch_nums=32,
    pop_threshold_for_queue=96,
    pull_rate_limit=0,
    max_body_size_bytes=16 << 20,
    on_corrupt_message="stop",
    on_offset_illegal="correct",
    failures=None,
    circuit=None,
    deduplication=None,
    offset_store=None,
    trace=None,
)


def group_options(**values: Any) -> ConsumerOptions:
    """The defaults with some values replaced; `subscriptions` may be a list of topics, or expressions by topic."""
    if "subscriptions" in values:
        values["subscriptions"] = _subscriptions(values["subscriptions"])
    return replace(_DEFAULTS, **values)


def handler_of(function: Callable[..., Any], *, is_async: bool = True) -> LoadedHandler:
    """A handler without start and stop; with `end_calls` where the function has it."""
    return LoadedHandler("testing", function, is_async, None, None, end_calls=getattr(function, "end_calls", None))


class Gathering:
    """A handler whose calls stay open until it is told to end them."""

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
    """A handler that waits until it is let go."""

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
