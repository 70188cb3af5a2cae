"""Groups with their own offset store: effect and offset are one transaction, despite failures in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar

import pytest

from rmqd import Depends, handler
from rmqd.offset_stores import OffsetStoreError, StoredProgress, StoredQueue, offset_connection
from rmqd.testing import OffsetStoreSuite, RocketMQ, RunResult

Run = Callable[..., RunResult]
Effects = Annotated[list[str], Depends(offset_connection)]
OWN = {"offset_store": {"plugin": f"{__name__}:MemoryOffsets"}}


class MemoryOffsets:
    """A database in memory. A transaction is a list of effects, with the progress that is stored with them."""

    effects: ClassVar[list[str]] = []
    rows: ClassVar[dict[StoredQueue, tuple[str, StoredProgress | None]]] = {}
    shrunk: ClassVar[list[tuple[StoredProgress, StoredProgress]]] = []
    """What was stored before and after a commit by which something was not finished any more."""
    commits: ClassVar[Iterator[str]] = iter(())
    """What goes wrong with each of the next commits with an effect, if anything."""
    failures: ClassVar[Iterator[Exception | None]] = iter(())
    """What the next calls of `take` and `transaction` raise, if anything."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def take(self, queue: StoredQueue, owner: str) -> StoredProgress | None:
        self.fail()
        stored = self.rows.get(queue, ("", None))[1]
        self.rows[queue] = owner, stored
        return stored

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        self.fail()
        connection = Written()
        yield connection
        fault = next(self.commits, "") if connection else ""
        if fault == "away":
            raise OffsetStoreError("the store is away")
        if any(self.rows[queue][0] != owner for queue, (owner, _) in connection.rows.items()):
            raise OffsetStoreError("taken meanwhile")
        for queue, (_, progress) in connection.rows.items():
            if (before := self.rows[queue][1]) and progress and finished(before) - finished(progress):
                self.shrunk.append((before, progress))
        self.effects.extend(connection)
        self.rows.update(connection.rows)
        if fault == "unheard":
            raise OffsetStoreError("no answer")

    def fail(self) -> None:
        if (failure := next(self.failures, None)) is not None:
            raise failure

    async def write(self, connection: Any, queue: StoredQueue, owner: str, progress: StoredProgress) -> bool:
        if self.rows[queue][0] == owner:
            connection.rows[queue] = owner, progress
        return queue in connection.rows


def finished(progress: StoredProgress) -> set[int]:
    """Return the finished offsets."""
    ranges = [one.split("-") for one in progress.above.split(",") if one]
    return {*range(progress.offset)}.union(*(range(int(first), int(last) + 1) for first, last in ranges))


class Written(list[str]):
    """An open transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[StoredQueue, tuple[str, StoredProgress | None]] = {}


@pytest.fixture(autouse=True)
def memory() -> type[MemoryOffsets]:
    """Empty the store, and return its class."""
    MemoryOffsets.effects, MemoryOffsets.shrunk, MemoryOffsets.rows, MemoryOffsets.commits = [], [], {}, iter(())
    MemoryOffsets.failures = iter(())
    return MemoryOffsets


class TestMemory(OffsetStoreSuite):
    def make_store(self) -> MemoryOffsets:
        return MemoryOffsets()

    async def add(self, connection: Any, name: str) -> None:
        connection.append(name)

    async def has(self, connection: Any, name: str) -> bool:
        return name in MemoryOffsets.effects


@handler(decode=bytes.decode)
async def add(body: str, effects: Effects) -> None:
    """Add one effect for each message."""
    effects.append(body)


@pytest.fixture
def bodies(rocketmq: RocketMQ) -> list[str]:
    """Send twelve messages to one queue, and return their bodies."""
    rocketmq.create_topic("orders")
    for number in range(12):
        rocketmq.send("orders", f"m{number:02}")
    return [f"m{number:02}" for number in range(12)]


@pytest.mark.parametrize("mode", [{}, {"consume_mode": "orderly"}, {"order_by": "keys"}])
@pytest.mark.parametrize("size", [1, 5])
def test_each_message_has_one_effect_despite_failed_commits(
    rocketmq: RocketMQ, run_handler: Run, memory: type[MemoryOffsets], bodies: list[str], mode: Any, size: int
) -> None:
    """Also if a commit gets no response, and if a message of a batch fails after its effect."""
    memory.commits = iter(["", "unheard", "away", "", "unheard"])
    failed = set[str]()

    @handler(decode=bytes.decode)
    async def fail_once(body: str, effects: Effects) -> None:
        effects.append(body)
        await asyncio.sleep(0)
        if body in ("m03", "m07") and body not in failed:
            failed.add(body)
            raise ValueError(body)

    run_handler(fail_once, topic="orders", group="g", consume_message_batch_max_size=size, **OWN, **mode)
    assert sorted(memory.effects) == bodies
    [stored] = [progress for queue, (_, progress) in memory.rows.items() if queue.topic == "orders"]
    assert (stored, memory.shrunk) == (StoredProgress(12), [])
    assert rocketmq.offsets("g", "orders") == {0: 12}


def test_messages_that_are_finished_in_the_store_are_not_handled_again(
    rocketmq: RocketMQ, run_handler: Run, memory: type[MemoryOffsets], bodies: list[str]
) -> None:
    """The store's progress counts, not the broker's offset, which is 12. An operator's reset overrides the store."""
    run_handler(add, topic="orders", group="g", **OWN)
    [queue] = [queue for queue in memory.rows if queue.topic == "orders"]
    assert (queue.group, queue.broker, queue.queue, bool(queue.cluster)) == ("g", "broker-a", 0, True)
    memory.rows[queue], memory.effects = ("dead", StoredProgress(2, "4-6,9-9,11-20")), []

    run_handler(add, topic="orders", group="g", **OWN)
    assert sorted(memory.effects) == ["m02", "m03", "m07", "m08", "m10"]
    assert memory.rows[queue][1] == StoredProgress(12, "12-20")

    rocketmq._do(lambda: rocketmq._embedded.broker.offsets.reset("g", "orders", 0, 10))
    run_handler(add, topic="orders", group="g", **OWN)
    assert memory.effects[5:] == bodies[10:]
    assert memory.rows[queue][1] == StoredProgress(12)


def test_a_driver_error_before_the_handler_call_is_retried(
    rocketmq: RocketMQ, run_handler: Run, memory: type[MemoryOffsets], bodies: list[str]
) -> None:
    """Such an error is not the handler's failure, so no message is sent back."""
    memory.failures = iter([OSError("refused"), None] * 10)
    result = run_handler(add, topic="orders", group="g", **OWN)
    assert sorted(memory.effects) == bodies
    assert (len(result.acked), len(result.attempts)) == (12, 12)
    assert rocketmq.offsets("g", "orders") == {0: 12}
