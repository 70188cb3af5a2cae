"""Histories of the offset store, checked against a model of the broker: commits are lost, late or reordered."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.errors import RmqdError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group_headers import UpdateConsumerOffsetRequestHeader
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.nightly.consumer.histories.broker import HistoryBroker
from tests.nightly.consumer.histories.virtual import VirtualLoop, VirtualPeer
from tests.simulation.loop import LoopClock

STEPS = 30
DRAIN_SECONDS = 40.0


@dataclass(slots=True)
class OffsetOutcome:
    """The result of one history."""

    seed: int
    commits: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong."""
        return not self.wrong

    def figures(self) -> dict[str, int]:
        """Numbers to add up over all histories."""
        return {"commits taken up": self.commits, "wrong": len(self.wrong)}


class _Watcher:
    """The owner of a queue; records the offsets to which it is reset."""

    process_queues: tuple[ProcessQueue, ...] = ()

    def __init__(self) -> None:
        self.back: list[int] = []

    def move_to(self, offset: int) -> None:
        self.back.append(offset)

    def count_handled_twice(self, messages: int) -> None:
        pass


class Offsets:
    """One queue with one owner after the other."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.chance = random.Random(seed)
        self.outcome = OffsetOutcome(seed)
        self.peer = VirtualPeer(loop, self.chance)
        self.peer.slow = self.chance.choice((0.05, 0.3))
        self.peer.slow_seconds = self.chance.choice((1.5, 4.0, 9.0))  # the last one is above a commit's deadline
        self.broker = HistoryBroker(self.peer)
        self.queue = self.broker.create_topic(TOPIC)[0]
        self._position = 0  # all messages below it are handled
        self._most = 0  # the same, before any reset
        self._floor = 0  # the lowest offset that may be stored when an ownership ends
        self._trouble = self.chance.random() < 0.5
        self.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, self._update)

    def _update(self, command: RemotingCommand) -> Reply | None:
        if self._trouble and self.chance.random() < 0.05:
            return Reply(ResponseCode.SYSTEM_BUSY, "busy") if self.chance.random() < 0.5 else None
        self.outcome.commits += 1
        header = UpdateConsumerOffsetRequestHeader.from_ext_fields(command.ext_fields)
        if header.commit_offset > self._most:
            self._wrong(f"{header.commit_offset} is committed, and all below {self._most} is handled")
        return self.broker.update(command)

    async def run(self) -> OffsetOutcome:
        """Run two to four ownerships, each with some steps and a check of the stored offset."""
        for _ in range(self.chance.randint(2, 4)):
            await self._own()
        return self.outcome

    async def _own(self) -> None:
        client = ClientInstance(ClientOptions(nameservers=(self.peer.address,)), clock=LoopClock())
        while True:
            with contextlib.suppress(RmqdError):
                await client.routes.lookup(TOPIC)
                break
            await asyncio.sleep(1.0)
        store, watcher = RemoteBrokerOffsetStore(client, GROUP, LoopClock()), _Watcher()
        stored = await self._read(store)
        if stored is None:
            stored = 0
        if stored < self._floor:
            self._wrong(f"a new owner finds {stored}, and {self._floor} was confirmed")
        self._position = max(stored, 0)
        store.begin_ownership(self.queue, stored, watcher)
        rounds = asyncio.create_task(self._persist(store))
        for _ in range(STEPS):
            await asyncio.sleep(self.chance.uniform(0, 3.0))
            await self._step(store)
        rounds.cancel()
        await asyncio.wait((rounds,))
        if watcher.back:
            self._wrong(f"{watcher.back} is taken for an operator's reset, and nobody reset anything")
        await self._give_up(store)
        await client.remoting.close()
        await store.close()

    async def _step(self, store: RemoteBrokerOffsetStore) -> None:
        what = self.chance.choice(("handle", "handle", "handle", "handle", "reset", "cut"))
        if what == "handle":
            self._position += self.chance.randint(1, 5)
            self._most = max(self._most, self._position)
        elif what == "cut" and self._trouble:
            self.peer.cut()
        elif what == "reset" and self.chance.random() < 0.3:
            # an operator's reset, as a pull response reports it
            self._position = self._floor = self.chance.randint(0, self._position)
            with contextlib.suppress(RmqdError):
                await store.commit(self.queue, self._position, downward=True)

    async def _persist(self, store: RemoteBrokerOffsetStore) -> None:
        while True:
            await asyncio.sleep(5.0)
            offset = self._position
            await store.persist({self.queue: offset})
            believed, highest = (
                store.committed.get(self.queue, 0),
                max((at for _, at in self.broker.commits), default=0),
            )
            if believed > highest:
                self._wrong(f"{believed} is believed, and {highest} is the highest that the broker ever had")

    async def _give_up(self, store: RemoteBrokerOffsetStore) -> None:
        """Release the queue as a hand-over does."""
        time = asyncio.get_running_loop().time
        until = time() + DRAIN_SECONDS
        while time() < until:
            with contextlib.suppress(RmqdError):
                if not await store.commit_upward(self.queue, self._position, lambda: time() < until):
                    break
                if not await store.wait_for_commits(self.queue, self._position, until):
                    self._floor = self._position
                    break
            await asyncio.sleep(0.2)
        store.forget(self.queue)

    async def _read(self, store: RemoteBrokerOffsetStore) -> int | None:
        while True:
            with contextlib.suppress(RmqdError):
                return await store.read(self.queue)
            await asyncio.sleep(1.0)

    def _wrong(self, what: str) -> None:
        self.outcome.wrong.append(f"{asyncio.get_running_loop().time():.3f}: {what}")


def offsets(seed: int) -> OffsetOutcome:
    """Run one history."""
    random.seed(seed)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(Offsets(seed, loop).run())
    finally:
        loop.end()
