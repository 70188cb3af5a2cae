"""One history: what a seed has happen to a cluster and a group, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors import RmqdError
from tests.consumer.groups import group_options
from tests.simulation.cluster import Broker, NameServer
from tests.simulation.judge import Trouble, judge
from tests.simulation.ledger import Ledger, Stored, key_of
from tests.simulation.loop import Host, LoopClock, SimulatedLoop
from tests.simulation.members import Habits, Member
from tests.simulation.network import Network
from tests.simulation.timeline import Timeline

TOPIC = "orders"
GROUP = "billing"
TROUBLE_SECONDS = 120.0
PATIENCE_SECONDS = 300.0


@dataclass(slots=True)
class Outcome:
    """What came of a history."""

    seed: int
    kind: str
    digest: str
    seconds: float
    """Simulated."""
    handled: int
    twice: Counter[str]
    """Messages that were done more than once, by cause."""
    wrong: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class History:
    """One history, by its seed."""

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.chance = chance = random.Random(seed)
        self.network = Network(loop, random.Random(chance.random()))
        self.timeline = Timeline(loop)
        self.ledger = Ledger(self.timeline)
        self.is_orderly = chance.random() < 0.5
        self.troubles = sorted(chance.sample(TROUBLES, chance.randint(0, len(TROUBLES))))
        mode = "orderly" if self.is_orderly else "concurrently"
        self.kind = f"{mode}: {', '.join(self.troubles) or 'nothing breaks'}"
        self.brokers = [
            Broker(loop, f"broker-{letter}", f"10.1.0.{i}") for i, letter in enumerate("ab"[: chance.randint(1, 2)])
        ]
        self.name_server = NameServer(loop, "ns", "10.2.0.1", self.brokers)
        self.habits = Habits(random.Random(chance.random()))
        self.options = group_options(
            group=GROUP,
            subscriptions=[TOPIC],
            consume_from_where="first_offset",
            consume_mode=mode,
            concurrency=chance.choice((1, 4, 20)),
            consume_message_batch_max_size=chance.choice((1, 1, 8)),
            shutdown_timeout_seconds=30.0,
        )
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.killed: list[Member] = []
        self.causes: list[Trouble] = []
        self.sent: set[str] = set()
        self._keys: dict[bytes, str] = {}
        self._names = iter(range(10_000))
        self._paused: list[Host] = []

    async def run(self) -> Outcome:
        """Let things happen, then let the group come to rest, and judge."""
        self.network.slow = self.chance.choice((0.0, 0.02, 0.1))
        self.network.pieces = self.chance.choice((0.0, 0.1))
        for broker in self.brokers:
            await broker.start()
            broker.set_queues(TOPIC, self.chance.randint(1, 4))
        await self.name_server.start()
        sending = Host(self.loop, "producer").spawn(self._send())
        self._join()
        until = self.loop.now + TROUBLE_SECONDS
        while self.loop.now < until:
            await asyncio.sleep(self.chance.uniform(0.1, 10.0))
            await self._happen()
        await self._calm()
        await sending
        quiet_at = self.timeline.now()
        while self.timeline.now() < quiet_at + PATIENCE_SECONDS and self._waiting():  # noqa: ASYNC110 - time jumps
            await asyncio.sleep(1.0)
        rest_at = self.timeline.now()
        for member in self.members:
            member.leave()
        await asyncio.gather(*(member.task for member in self.members))
        self.gone += self.members
        self.timeline.note("judge", "the end")
        stored = self._stored()
        wrong, twice = judge(self, stored, rest_at - quiet_at)
        handled = sum(self.ledger.is_done(key) for key in stored)
        return Outcome(
            self.seed,
            self.kind,
            self.timeline.digest,
            self.timeline.now(),
            handled,
            twice,
            wrong,
            self.timeline.lines(),
        )

    def _waiting(self) -> bool:
        return not all(map(self.ledger.is_done, self._stored()))

    def _stored(self) -> dict[str, list[Stored]]:
        """Where the brokers have each message of the topic, by its key."""
        stored: dict[str, list[Stored]] = {}
        for broker in self.brokers:
            for row in broker.disk.records():
                if row.topic == TOPIC:
                    key = self._keys.get(row.record) or self._keys.setdefault(row.record, key_of(row.record))
                    stored.setdefault(key, []).append(Stored(broker.name, row.queue_id, row.queue_offset))
        return stored

    def _join(self) -> None:
        member = Member(
            self.loop, f"m{next(self._names)}", (self.name_server.address,), self.options, self.ledger, self.habits
        )
        self.members.append(member)
        self.timeline.note(member.name, "joins")

    async def _happen(self) -> None:
        chance = self.chance
        what = chance.choice(["join", "join", "leave", "nothing", *self.troubles, *self.troubles])
        await getattr(self, f"_{what}_now")()

    async def _nothing_now(self) -> None:
        return

    async def _join_now(self) -> None:
        if len(self.members) < 4:
            self._join()

    async def _leave_now(self) -> None:
        if len(self.members) > 1:
            member = self.members.pop(self.chance.randrange(len(self.members)))
            self.gone.append(member)
            self.timeline.note(member.name, "leaves")
            member.leave()

    async def _kill_now(self) -> None:
        if len(self.members) > 1:
            member = self.members.pop(self.chance.randrange(len(self.members)))
            self._trouble("killed", member.name)
            self.killed.append(member)
            member.kill()

    async def _cut_now(self) -> None:
        if self.network.connections:
            connection = self.chance.choice(self.network.connections)
            self._trouble("cut", connection.near.host.name, connection.far.host.name)
            connection.cut()

    async def _crash_now(self) -> None:
        broker = self.chance.choice(self.brokers)
        if broker.is_up:
            self._trouble("crashed", broker.name)
            broker.kill()
            await asyncio.sleep(self.chance.uniform(0.1, 20.0))
            self.timeline.note(broker.name, "starts again")
            await broker.start()

    async def _pause_now(self) -> None:
        member = self.chance.choice(self.members)
        if not member.host.is_paused:
            seconds = self.chance.choice((0.5, 5.0, 40.0, 150.0))
            self._trouble("paused", member.name, seconds=seconds)
            member.host.pause()
            self._paused.append(member.host)
            self.loop.call_later(seconds, self._resume, member.host)

    async def _partition_now(self) -> None:
        member, broker = self.chance.choice(self.members), self.chance.choice(self.brokers)
        seconds = self.chance.choice((0.5, 3.0, 10.0, 40.0))
        pair = frozenset((member.host.name, broker.host.name))
        if pair not in self.network.apart:
            self._trouble("apart", member.name, broker.name, seconds=seconds)
            self.network.apart.add(pair)
            self.loop.call_later(seconds, self.network.apart.discard, pair)

    def _resume(self, host: Host) -> None:
        if host.is_paused:
            self.timeline.note(host.name, "goes on")
            host.resume()

    def _trouble(self, what: str, *who: str, seconds: float = 0.0) -> None:
        self.timeline.note(" and ".join(who), what + (f" for {seconds:g} s" if seconds else ""))
        self.causes.append(Trouble(self.timeline.now(), self.timeline.now() + seconds, what, who))

    async def _calm(self) -> None:
        """End all trouble."""
        self.timeline.note("judge", "all is well from here on")
        self.network.slow = 0.0
        self.network.apart.clear()
        for host in self._paused:
            self._resume(host)
        if not self.members:
            self._join()

    async def _send(self) -> None:
        client = ClientInstance(
            ClientOptions(nameservers=(self.name_server.address,), instance_name="p"), clock=LoopClock()
        )
        running = asyncio.create_task(client.run())
        chance = random.Random(self.chance.random())
        number = 0
        until = self.loop.now + TROUBLE_SECONDS * 0.9
        while self.loop.now < until:
            await asyncio.sleep(chance.expovariate(2.0))
            for _ in range(chance.choice((1, 1, 1, 20))):
                key, number = f"k{number}", number + 1
                with contextlib.suppress(RmqdError):
                    await client.producer.send(OutgoingMessage(TOPIC, b"x", keys=key))
                    self.sent.add(key)
        client.stop()
        await asyncio.wait((running,))


TROUBLES = ["kill", "cut", "crash", "pause", "partition"]
