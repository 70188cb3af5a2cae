"""Tests of the guarantees of every offset store. The test class of a custom store inherits `OffsetStoreSuite`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Any

from rmqd.errors import OffsetStoreError
from rmqd.offset_stores import OffsetStore, StoredProgress, StoredQueue

SHORT_SECONDS = 0.2  # long enough to show that `take` waits for the previous owner's running commit


def _with_two_stores(check: Callable[..., Any]) -> Callable[[OffsetStoreSuite], None]:
    def test(self: OffsetStoreSuite) -> None:
        async def run() -> None:
            async with contextlib.AsyncExitStack() as opened:
                stores = self.make_store(), self.make_store()
                for store in stores:
                    await store.open()
                    opened.push_async_callback(store.close)
                await check(self, *stores, StoredQueue("cluster", "group", secrets.token_hex(8), "broker-a", 0))

        asyncio.run(run())

    return test


class OffsetStoreSuite:
    """The base of a test class for an offset store. The subclass creates stores, and defines an effect to commit."""

    def make_store(self) -> OffsetStore:
        """Return a new store that is not open yet. All stores that one test creates must share their data."""
        raise NotImplementedError

    async def add(self, connection: Any, name: str) -> None:
        """Write an effect with this name in the open transaction of `connection`."""
        raise NotImplementedError

    async def has(self, connection: Any, name: str) -> bool:
        """Return whether the effect with this name was committed. `connection` belongs to another transaction."""
        raise NotImplementedError

    @_with_two_stores
    async def test_what_is_stored_of_a_queue_is_what_was_written_last(
        self, store: OffsetStore, other: OffsetStore, queue: StoredQueue
    ) -> None:
        assert await store.take(queue, "a") is None
        for progress in (StoredProgress(7), StoredProgress(9, "11-12,14-14"), StoredProgress(3)):
            async with store.transaction() as connection:
                assert await store.write(connection, queue, "a", progress)
            assert await store.take(queue, "a") == progress
        for another in (queue._replace(queue=1), queue._replace(group="other"), queue._replace(cluster="other")):
            assert await other.take(another, "a") is None

    @_with_two_stores
    async def test_an_effect_and_its_offset_are_stored_together_or_not_at_all(
        self, store: OffsetStore, other: OffsetStore, queue: StoredQueue
    ) -> None:
        await store.take(queue, "a")
        for offset, name in enumerate((queue.topic, f"{queue.topic} lost")):
            with contextlib.suppress(ZeroDivisionError):
                async with store.transaction() as connection:
                    await self.add(connection, name)
                    assert await store.write(connection, queue, "a", StoredProgress(offset))
                    assert 1 / (1 - offset)
        async with other.transaction() as connection:
            assert await self.has(connection, queue.topic)
            assert not await self.has(connection, f"{queue.topic} lost")
        assert await other.take(queue, "b") == StoredProgress(0)

    @_with_two_stores
    async def test_a_former_owner_stores_nothing(
        self, former: OffsetStore, store: OffsetStore, queue: StoredQueue
    ) -> None:
        await former.take(queue, "a")
        async with former.transaction() as connection:
            await self.add(connection, queue.topic)
            await store.take(queue, "b")
            async with store.transaction() as other:
                assert await store.write(other, queue, "b", StoredProgress(5))
            assert not await former.write(connection, queue, "a", StoredProgress(9))
        assert await store.take(queue, "c") == StoredProgress(5)

    @_with_two_stores
    async def test_who_takes_a_queue_learns_of_a_commit_that_is_under_way(
        self, former: OffsetStore, store: OffsetStore, queue: StoredQueue
    ) -> None:
        """Whether the commit succeeds or fails, `take` must return the matching progress."""
        await former.take(queue, "a")
        with contextlib.suppress(OffsetStoreError):
            async with former.transaction() as connection:
                await self.add(connection, queue.topic)
                assert await former.write(connection, queue, "a", StoredProgress(5))
                taking = asyncio.create_task(store.take(queue, "b"))
                await asyncio.wait((taking,), timeout=SHORT_SECONDS)
        taken = await taking
        async with store.transaction() as connection:
            assert taken == (StoredProgress(5) if await self.has(connection, queue.topic) else None)
