"""A canary: which messages it gets, alone in a batch and in order, and that it disturbs no other message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rmqd.consumer.canary import Canary, CanarySnapshot
from rmqd.consumer.consumer_options import CanaryOptions
from rmqd.consumer.stats.counters import CanaryStats
from rmqd.handler_api.batch import Batch, DeadLetter, Retry
from rmqd.runtime.clock import SystemClock
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.blocks import keyed_block
from tests.consumer.groups import TOPIC, group_options, handler_of
from tests.consumer.pool import StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

KEYS = [f"order-{number}" for number in range(40)]


def canary_of(share: float, by: str = "keys", mode: Any = "live", function: Callable[..., Any] = print) -> Canary:
    options = group_options(canary=CanaryOptions(share, by, mode))
    return Canary(handler_of(function), options, SystemClock())


def test_a_share_of_keys_is_stable_and_grows() -> None:
    """The same keys in each process; a larger share adds keys; without a key, the id decides."""
    messages = keyed_block(0, [f"order-{number}" for number in range(10_000)], MessageQueue(TOPIC, "a", 0)).messages
    few, many = ({one.keys for one in messages if canary_of(share).is_in_share(one)} for share in (0.01, 0.2))
    assert few < many
    assert (len(few), len(many)) == (105, 1944)
    assert not any(canary_of(0.0).is_in_share(one) for one in messages)
    assert all(canary_of(1.0).is_in_share(one) for one in messages)
    by_id = [canary_of(0.5, "property:missing").is_in_share(one) for one in messages[:500]]
    assert by_id == [canary_of(0.5, "msg_id").is_in_share(one) for one in messages[:500]]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    "mode",
    [{}, {"consume_mode": "orderly"}, {"consume_mode": "orderly", "auto_commit": False}, {"order_by": "keys"}],
    ids=["concurrently", "orderly", "manual", "by key"],
)
async def test_a_batch_is_for_one_handler_and_the_order_is_kept(
    pool: StartPool, mode: dict[str, Any], *, is_async: bool
) -> None:
    """In an orderly queue a batch ends where the other handler's messages begin; elsewhere each gets full batches."""
    batches: list[tuple[str, list[str | None]]] = []

    def handler(name: str) -> Callable[..., Any]:
        def handle(batch: Batch) -> None:
            batches.append((name, [message.keys for message in batch]))
            if "auto_commit" in mode:
                batch.commit()

        async def handle_async(batch: Batch) -> None:
            handle(batch)

        return handle_async if is_async else handle

    many = {"consume_message_batch_max_size": 8, "concurrency": 1, "canary": CanaryOptions(0.5, "keys", "live"), **mode}
    async with pool(handler("first"), second=handler("canary"), is_async=is_async, **many) as p:
        queue = p.ordered(KEYS)
        await eventually(done(queue), "everything is handled")
        assert p.canary is not None
        messages = keyed_block(0, KEYS, queue.message_queue).messages
        wanted = {one.keys: "canary" for one in messages if p.canary.is_in_share(one)}
    assert {key: name for name, keys in batches for key in keys if name == "canary"} == wanted
    every = [key for _, keys in batches for key in keys]
    assert sorted(map(str, every)) == sorted(KEYS)
    if "consume_mode" in mode:
        assert every == KEYS
    else:
        assert len(batches) < 12
    by_variant = {one.variant: one.handled["acked"] for one in queue.stats.snapshots()}
    assert by_variant == {"": 40 - len(wanted), "canary": len(wanted)}


async def test_the_results_of_a_canary_are_counted_separately(pool: StartPool, broker: ScriptedBroker) -> None:
    """So are its exceptions and dead letters. With a share of 0 it gets nothing, and this change applies at once."""
    options = group_options(canary=CanaryOptions(0.5, "keys", "live"))

    async def bad(_: Batch) -> None:
        raise DeadLetter("new code")

    async def good(_: Batch) -> None:
        pass

    async with pool(good, second=bad, canary=options.canary) as p:
        queue = p.ordered(KEYS)
        await eventually(done(queue), "everything is handled")
        first, canary = queue.stats.snapshots()
        assert 0 < canary.handled["dead_lettered"] == 40 - first.handled["acked"]
        assert (canary.dead_letters["handler"], first.dead_letters["handler"]) == (canary.handled["dead_lettered"], 0)
        assert not first.exceptions
        assert canary.exceptions == {"DeadLetter": canary.dead_letters["handler"]}
        assert canary.handler_duration.count == canary.handled["dead_lettered"]
        assert sum(stats.attempts for stats in (queue.stats,)) == 40 + canary.handled["dead_lettered"]
        p.service.change(replace(options, canary=CanaryOptions(0.0, "keys", "live")))
        p.give_keys(queue, KEYS)
        await eventually(done(queue), "everything is handled")
        assert queue.stats.snapshots()[0].handled["acked"] == first.handled["acked"] + 40


def test_quick_calls_of_both_handlers_are_counted_separately() -> None:
    """Also when they are counted together, and fall into the buckets of earlier calls."""
    canary = canary_of(0.5)
    stats = CanaryStats(TOPIC, is_retry=False, takes=canary.is_in_share)
    messages = keyed_block(0, KEYS).messages
    for _ in range(2):
        stats.count_acknowledged_singly(messages, 0.001, 1.0)
    assert [one.handled["acked"] for one in stats.snapshots()] == [
        2 * sum(canary.is_in_share(one) is is_canary for one in messages) for is_canary in (False, True)
    ]


async def test_a_shadow_is_compared_and_disturbs_nothing(pool: StartPool, broker: ScriptedBroker) -> None:
    """Its decisions have no effect. A shadow that hangs expires, and while too many hang, messages are skipped."""
    hanging = asyncio.Event()

    async def first(batch: Batch) -> None:
        if batch[0].keys == "odd":
            raise Retry

    async def shadow(batch: Batch) -> None:
        match batch[0].keys:
            case "hangs":
                await hanging.wait()
            case "fails":
                raise ValueError
            case "dead" | "odd":
                batch.dead_letter(batch[0])  # late for the first handler, whose call has ended

    values = {"concurrency": 2, "consume_timeout_seconds": 0.2, "canary": CanaryOptions(1.0, "keys", "shadow")}
    async with pool(first, second=shadow, **values) as p:
        assert p.canary is not None
        snapshot = p.canary.snapshot
        for keys in (["fine"], ["fails"], ["dead"], ["odd"]):
            is_more = _more_than(sum(snapshot().shadowed.values()), snapshot)
            await eventually(done(p.ordered(keys)), "the first handler is done")
            await eventually(is_more, "the shadow is done")
        queue = p.ordered(["hangs", "hangs", "hangs"])
        await eventually(done(queue), "the first handler does not wait")
        assert handled(queue) == {"acked": 3}
        await eventually(lambda: snapshot().shadowed["expired"] == 2, "the hanging calls expire")
    assert snapshot().shadowed == {"acked": 1, "retried": 1, "dead_lettered": 2, "expired": 2, "skipped": 1}
    assert snapshot().differing == 5
    assert len(broker.sent_back) == 1
    assert broker.sent == []
    assert snapshot().duration.count == 6


def _more_than(before: int, snapshot: Callable[[], CanarySnapshot]) -> Callable[[], bool]:
    return lambda: sum(snapshot().shadowed.values()) > before
