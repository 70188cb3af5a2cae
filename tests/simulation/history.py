"""One history: a plan happens to a cluster and a group, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rmqd.broker.store.record_log import RecordRow
from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.consumer.handling.send_back import reconsume_limit
from rmqd.errors import RmqdError
from rmqd.wire.topics import dlq_topic
from tests.consumer.groups import group_options
from tests.simulation.cluster import Broker, NameServer
from tests.simulation.happenings import HAPPENINGS
from tests.simulation.judging.commits import Commits
from tests.simulation.judging.ends import END_SECONDS
from tests.simulation.judging.judge import judge
from tests.simulation.judging.passed import Passed, Reset
from tests.simulation.judging.trouble import Trouble
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Ledger, Stored, key_of
from tests.simulation.loop import Host, LoopClock, SimulatedLoop
from tests.simulation.members import Handling, Member
from tests.simulation.names import GROUP, TAGS, TOPIC
from tests.simulation.network import Network
from tests.simulation.plan import Event, Plan
from tests.simulation.timeline import Timeline

HUNG_SECONDS = 10.0
UNDER_WAY_SECONDS = 3.0
"""How long what was sent may take to arrive once nothing breaks any more."""
PATIENCE_SECONDS = 300.0


@dataclass(slots=True)
class Outcome:
    """What came of a plan."""

    plan: Plan
    digest: str
    seconds: float
    """Simulated."""
    handled: int
    twice: Counter[str]
    """Messages that were done more than once, by cause."""
    wrong: list[Wrong] = field(default_factory=list)
    lines: Callable[[frozenset[str] | None], list[str]] = lambda _: []
    """The timeline, of all messages or of those with these keys."""


class History:
    """A plan as it happens."""

    def __init__(self, plan: Plan, loop: SimulatedLoop) -> None:
        self.plan = plan
        self.loop = loop
        chance = random.Random(plan.seed)
        self.network = Network(loop, random.Random(chance.random()))
        self.network.slow, self.network.pieces = plan.slow, plan.pieces
        self.timeline = Timeline(loop)
        self.brokers = [Broker(loop, f"broker-{'ab'[i]}", f"10.1.0.{i}") for i in range(len(plan.queues))]
        self.name_server = NameServer(loop, "ns", "10.2.0.1", self.brokers)
        self.options = group_options(
            group=GROUP,
            subscriptions=[TOPIC],
            consume_from_where="first_offset",
            consume_mode=plan.way,
            concurrency=plan.concurrency,
            consume_message_batch_max_size=plan.batch_size,
            consume_timeout_seconds=HUNG_SECONDS if "hang" in plan.troubles else 900.0,
            max_reconsume_times=plan.max_reconsume_times,
            delay_level_when_next_consume=plan.delay_level,
            auto_commit=plan.auto_commit,
            shutdown_timeout_seconds=30.0,
        )
        self._first_options = self.options
        self.most_attempts = reconsume_limit(self.options)
        """The reconsume times after which a message is given up."""
        self.ledger = Ledger(
            self.timeline, self.most_attempts, is_orderly=self.is_orderly, is_manual=not plan.auto_commit
        )
        self.passed = Passed(self.ledger, self._explains_unheeded)
        self.commits = Commits(self.ledger, self.passed)
        self.members: list[Member] = []
        """Those that are there."""
        self.former: list[Member] = []
        """Those that left, or were killed."""
        self.causes: list[Trouble] = []
        self.sent: set[str] = set()
        """The keys of messages that a broker has acknowledged."""
        self.rest_seconds = 0.0
        """How long it took to handle what was left when nothing broke any more."""
        self._handlers_chance = random.Random(chance.random())
        self._producers_chance = random.Random(chance.random())
        self._keys: dict[bytes, str] = {}
        self._names = iter(range(10_000))
        self._paused: list[Host] = []

    async def run(self) -> Outcome:
        """Let all happen, then let the group come to rest, and judge."""
        for broker, queues in zip(self.brokers, self.plan.queues, strict=True):
            broker.disk.on_offset = functools.partial(self._committed, broker.name)
            broker.disk.on_record = functools.partial(self._stored, broker.name)
            await broker.start()
            broker.set_queues(TOPIC, queues)
        await self.name_server.start()
        sending = Host(self.loop, "producer").spawn(self._send())
        self.join()
        happening = [asyncio.create_task(self._happen(event)) for event in self.plan.events]
        await asyncio.sleep(self.plan.seconds)
        await asyncio.gather(*happening)
        self._calm()
        await sending
        await self._rest()
        for member in self.members:
            member.leave()
        self.former += self.members
        await asyncio.wait([member.task for member in self.former if not member.host.is_dead], timeout=END_SECONDS)
        self.timeline.note("judge", "the end")
        wrong, twice = judge(self)
        handled = sum(map(self.ledger.is_done, self.stored()))
        seconds = self.timeline.now()
        return Outcome(self.plan, self.timeline.digest, seconds, handled, twice, wrong, self.timeline.lines)

    def join(self) -> None:
        """A member comes."""
        name = f"m{next(self._names)}"
        handling = Handling(name, self.ledger, self.plan, self._handlers_chance, self.options.consume_timeout_seconds)
        member = Member(self.loop, name, (self.name_server.address,), self.options, handling)
        self.members.append(member)
        self.timeline.note(member.name, "joins")

    def any_member(self, chance: random.Random) -> Member | None:
        """One of those that are there, if there is one."""
        return chance.choice(self.members) if self.members else None

    def take_out(self, chance: random.Random) -> Member:
        """A member that is to go."""
        member = self.members.pop(chance.randrange(len(self.members)))
        self.former.append(member)
        return member

    def pause(self, host: Host, seconds: float) -> None:
        """Suspend a host for some time."""
        host.pause()
        self._paused.append(host)
        self.loop.call_later(seconds, self._resume, host)

    def trouble(self, what: str, *who: str, seconds: float = 0.0) -> None:
        """Note what breaks, for how long, and for whom."""
        self.timeline.note(" and ".join(who), what + (f" for {seconds:g} s" if seconds else ""))
        self.causes.append(Trouble(self.timeline.now(), self.timeline.now() + seconds, what, who))

    def stored(self) -> dict[str, list[Stored]]:
        """Where the brokers have each message of the topic, by its key."""
        stored: dict[str, list[Stored]] = {}
        for broker in self.brokers:
            for row in broker.disk.records():
                if row.topic == TOPIC:
                    key = self._keys.get(row.record) or self._keys.setdefault(row.record, key_of(row.record))
                    stored.setdefault(key, []).append(Stored(broker.name, row.queue_id, row.queue_offset))
        return stored

    @property
    def is_orderly(self) -> bool:
        """Whether queues have an order to be kept."""
        return self.plan.way == "orderly"

    def end_of(self, member: str) -> float:
        """When a member was killed, in seconds since the beginning; infinite for others."""
        return min((one.at for one in self.causes if one.what == "killed" and member in one.who), default=float("inf"))

    async def _happen(self, event: Event) -> None:
        await asyncio.sleep(event.at)
        await HAPPENINGS[event.what].happen(self, random.Random(event.seed))

    async def _rest(self) -> None:
        quiet_at = self.timeline.now()
        await asyncio.sleep(UNDER_WAY_SECONDS)
        waiting = self.stored()
        while True:
            waiting = {key: places for key, places in waiting.items() if not self.passed.is_settled(key, places)}
            if not waiting or self.timeline.now() > quiet_at + PATIENCE_SECONDS:
                break
            await asyncio.sleep(1.0)
        self.rest_seconds = self.timeline.now() - quiet_at

    def _committed(self, broker: str, key: str, offset: int) -> None:
        topic, group, queue = key.split("@")
        if (topic, group) == (TOPIC, GROUP) and self._is_news(broker, int(queue), offset):
            self.timeline.note(broker, f"has offset {offset} of queue {queue}")

    def _is_news(self, broker: str, queue: int, offset: int) -> bool:
        return self.commits.stored(broker, queue, offset, self.timeline.now())

    def _stored(self, broker: str, row: RecordRow) -> None:
        if row.topic == TOPIC:  # the hash of a tag of one character is its number
            place = Stored(broker, row.queue_id, row.queue_offset)
            self.passed.tags[place] = self.timeline.now(), chr(row.tags_code)
        elif row.topic == dlq_topic(GROUP):
            self.ledger.died(broker, key_of(row.record))

    def _explains_unheeded(self, reset: Reset) -> bool:
        return any(trouble.explains_unheeded(reset) for trouble in self.causes)

    def _resume(self, host: Host) -> None:
        if host.is_paused:
            self.timeline.note(host.name, "goes on")
            host.resume()

    def _calm(self) -> None:
        """End all trouble."""
        self.timeline.note("judge", "all is well from here on")
        self.network.slow = 0.0
        for broken in (self.network.apart, self.network.deaf, self.network.unreachable, self.network.noise):
            broken.clear()
        for host in self._paused:
            self._resume(host)
        if not self.members:
            self.join()
        self.options = self._first_options
        for member in self.members:
            member.call(member.consumer.resume)
            member.host.spawn(member.change(self.options))

    async def _send(self) -> None:
        client = ClientInstance(
            ClientOptions(nameservers=(self.name_server.address,), instance_name="p"), clock=LoopClock()
        )
        running = asyncio.create_task(client.run())
        chance = self._producers_chance
        number = 0
        until = self.loop.now + self.plan.seconds * 0.9
        while self.loop.now < until:
            await asyncio.sleep(chance.expovariate(2.0))
            for _ in range(min(chance.choice((1, 1, 1, 20)), self.plan.most_messages - number)):
                key, number = f"k{number}", number + 1
                with contextlib.suppress(RmqdError):
                    await client.producer.send(OutgoingMessage(TOPIC, b"x", tags=chance.choice(TAGS), keys=key))
                    self.sent.add(key)
        client.stop()
        await asyncio.wait((running,))
