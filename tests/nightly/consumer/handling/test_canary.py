"""A canary that cannot be used. The core of these tests is in tests/consumer/handling/test_canary.py."""

from __future__ import annotations

from typing import Any

from rmqd.consumer.consumer_options import CanaryOptions
from rmqd.handler_api.batch import Batch
from tests.consumer.blocks import keyed_block
from tests.consumer.handling.test_canary import KEYS, canary_of
from tests.consumer.pool import StartPool, done
from tests.waiting import eventually


def _forgets_to_await(_: Batch) -> Any:
    async def work() -> None:
        pass

    return work()


async def test_a_canary_that_cannot_handle_anything_is_switched_off(pool: StartPool) -> None:
    """The first handler gets its messages, also if the canary cannot be started."""

    def first(_: Batch) -> None:
        pass

    async with pool(first, second=_forgets_to_await, is_async=False, canary=CanaryOptions(1.0, "keys", "live")) as p:
        queue = p.ordered(KEYS)
        await eventually(done(queue), "everything is handled")
        assert queue.stats.snapshots()[0].handled["acked"] == 40
        assert p.canary is not None
        assert "never awaited" in p.canary.snapshot().failure

    def fail() -> None:
        raise OSError("no database")

    canary = canary_of(1.0)
    canary.handler.start = fail
    await canary.start()
    await canary.stop()
    assert canary.snapshot().failure == "its start failed: OSError: no database"
    assert not canary.is_in_share(keyed_block(0, ["a"]).messages[0])
