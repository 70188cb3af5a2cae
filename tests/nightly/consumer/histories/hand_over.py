"""Histories of hand-overs: members join, leave and die while a broker answers late, in any order, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import TOPIC, group_options, handler_of
from tests.nightly.consumer.histories.broker import HistoryBroker
from tests.nightly.consumer.histories.virtual import VirtualLoop, VirtualPeer
from tests.simulation.loop import LoopClock

SECONDS = 40.0
PATIENCE_SECONDS = 400.0


@dataclass(slots=True)
class Outcome:
    """The result of one history; `excuses` are the causes that may let messages be handled twice."""

    seed: int
    kind: str
    handled: int = 0
    twice: int = 0
    counted: int = 0
    lost: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    excuses: Counter[str] = field(default_factory=Counter)

    @property
    def uncounted(self) -> int:
        """Messages that were handled twice without any of these causes, and without being counted by a member."""
        return 0 if self.excuses else max(0, self.twice - self.counted)

    def figures(self) -> dict[str, int]:
        """Numbers to add up over all histories."""
        counts = {"lost": self.lost, "out of order": self.disorder, "overlaps": self.overlaps}
        figures = {name: len(found) for name, found in counts.items()}
        return figures | {"handled": self.handled, "twice": self.twice, "twice, uncounted": self.uncounted}

    @property
    def is_good(self) -> bool:
        """Whether the history kept all promises."""
        return not (self.lost or self.disorder or self.overlaps or self.uncounted)


class _Member:
    def __init__(self, history: HandOver, name: str) -> None:
        client_options = ClientOptions(nameservers=(history.peer.address,), instance_name=name)
        self.client = ClientInstance(client_options, clock=LoopClock())
        self.consumer = PushConsumer(history.options, handler_of(self.handle), self.client)
        self.is_dead = False
        self._history = history
        self._name = name
        self.task = asyncio.create_task(self._run(), name=name)

    async def handle(self, batch: Batch) -> None:
        await self._history.handle(self._name, batch)

    async def _run(self) -> None:
        serving = asyncio.create_task(self.client.run())
        try:
            await self.consumer.run()
        finally:
            self.client.stop()
            await asyncio.wait((serving,))

    async def leave(self) -> None:
        self.consumer.stop(shutdown_timeout_seconds=30.0)
        await self.task

    async def die(self) -> None:
        self.is_dead = True
        await self.client.remoting.close()
        self.task.cancel()
        await asyncio.wait((self.task,))


class HandOver:
    """One history, determined by its seed."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.chance = chance = random.Random(seed)
        self.is_orderly = chance.random() < 0.5
        self.trouble = chance.choice(("none", "cuts", "kills and restarts"))
        kind = f"{'orderly' if self.is_orderly else 'concurrently'}, trouble: {self.trouble}"
        self.outcome = Outcome(seed, kind)
        self.peer = VirtualPeer(loop, chance)
        self.peer.slow = chance.choice((0.0, 0.05, 0.3))
        self.broker = HistoryBroker(self.peer)
        self.broker.notifies = chance.random() < 0.8
        self.options = group_options(
            consume_from_where="first_offset",  # messages sent before the first member joins count, too
            consume_mode="orderly" if self.is_orderly else "concurrently",
            concurrency=4,
            persist_consumer_offset_interval_seconds=chance.choice((1.0, 5.0, 30.0)),
            shutdown_timeout_seconds=30.0,
        )
        self.queues = self.broker.create_topic(TOPIC, chance.randint(1, 4))
        self._done: dict[int, Counter[int]] = defaultdict(Counter)  # per queue, how often each offset was handled
        self._at: dict[int, str] = {}  # the member that handles a queue
        self._members: list[_Member] = []
        self._gone: list[_Member] = []
        self._names = iter(range(1000))

    async def handle(self, name: str, batch: Batch) -> None:
        queue, offset = batch[0].queue_id, batch[0].queue_offset
        done, outcome = self._done[queue], self.outcome
        if self.is_orderly:
            if queue in self._at and self._at[queue] != name:
                outcome.overlaps.append(f"queue {queue}: {name} at {offset}, and {self._at[queue]}")
            self._at[queue] = name
            if offset and not done[offset - 1]:
                outcome.disorder.append(f"queue {queue}: {offset} before {offset - 1}")
        try:
            slow = self.chance.random() < 0.01
            await asyncio.sleep(self.chance.uniform(0, 3.0) if slow else self.chance.uniform(0, 0.1))
            done[offset] += 1
        finally:
            if self._at.get(queue) == name:
                del self._at[queue]

    async def run(self) -> Outcome:
        """Let random events happen for a while, wait until all messages are handled, and judge."""
        flushing = asyncio.create_task(self.broker.flush())
        self._join()
        sending = asyncio.create_task(self._send())
        until = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(self.chance.uniform(0.1, 8.0))
            await self._happen()
        await sending
        self.peer.slow = 0.0
        if not self._members:
            self._join()
        until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while asyncio.get_running_loop().time() < until and not all(map(self._is_handled, self.queues)):  # noqa: ASYNC110 - time jumps
            await asyncio.sleep(1.0)
        await asyncio.gather(*(member.leave() for member in self._members))
        self._gone += self._members
        await asyncio.gather(*(member.task for member in self._gone), return_exceptions=True)
        flushing.cancel()
        self._judge()
        return self.outcome

    def _join(self) -> None:
        self._members.append(_Member(self, f"m{next(self._names)}"))

    async def _happen(self) -> None:
        chance, outcome = self.chance, self.outcome
        what = chance.choice(["join", "join", "leave", "kill", "cut", "restart", "nothing"])
        if what == "join" and len(self._members) < 4:
            self._join()
            await self._cut_meanwhile()
        elif what == "leave" and len(self._members) > 1:
            member = self._members.pop(chance.randrange(len(self._members)))
            self._gone.append(member)
            member.consumer.stop(shutdown_timeout_seconds=30.0)
            await self._cut_meanwhile()
        elif what == "kill" and len(self._members) > 1 and self.trouble == "kills and restarts":
            outcome.excuses["killed"] += 1
            member = self._members.pop(chance.randrange(len(self._members)))
            self._at = {queue: name for queue, name in self._at.items() if name != member._name}
            await member.die()
            self._gone.append(member)
        elif what == "cut" and self.trouble == "cuts":
            self._cut()
        elif what == "restart" and self.trouble == "kills and restarts" and chance.random() < 0.5:
            outcome.excuses["restarted"] += 1
            await self.broker.restart(chance.uniform(0.1, 3.0))

    async def _cut_meanwhile(self) -> None:
        if self.trouble == "cuts" and self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.uniform(0, 1.0))
            self._cut()

    def _cut(self) -> None:
        if self.chance.random() < 0.5:
            self.peer.cut()
        else:
            self.peer.cut_one()

    async def _send(self) -> None:
        for _ in range(60):
            await asyncio.sleep(self.chance.uniform(0, 1.2))
            queue = self.chance.choice(self.queues)
            await self.broker.store(queue, *[b"x"] * self.chance.randint(1, 5))

    def _is_handled(self, queue: MessageQueue) -> bool:
        return all(self._done[queue.queue_id][offset] for offset in range(self.broker.end(queue)))

    def _judge(self) -> None:
        outcome = self.outcome
        for queue in self.queues:
            done = self._done[queue.queue_id]
            outcome.lost += [f"queue {queue.queue_id}: {at}" for at in range(self.broker.end(queue)) if not done[at]]
            outcome.handled += len(done)
            outcome.twice += sum(count - 1 for count in done.values() if count > 1)
        for member in self._gone:
            snapshot = member.consumer.snapshot()
            outcome.excuses["timed out"] += snapshot.handover_timeouts
            outcome.counted += sum(sum(topic.duplicates.values()) for topic in snapshot.topics)
        outcome.excuses = +outcome.excuses


def hand_over(seed: int) -> Outcome:
    """Run one history."""
    random.seed(seed)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(HandOver(seed, loop).run())
    finally:
        loop.end()
