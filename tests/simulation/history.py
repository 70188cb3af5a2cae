"""One history: a plan happens to a cluster and a group."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from rmqd.broker.store.journal import RecordRow
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.send_back import reconsume_limit
from rmqd.wire.bodies.pop_bodies import MessageRequestMode
from rmqd.wire.topics import dlq_topic, topic_of_pop_retry
from tests.simulation.cluster import Broker
from tests.simulation.commit_threads import CommitThreads
from tests.simulation.ending import calm, come_to_rest
from tests.simulation.happenings import HAPPENINGS
from tests.simulation.judging.commits import Commits
from tests.simulation.judging.ends import END_SECONDS
from tests.simulation.judging.forgotten import Forgotten
from tests.simulation.judging.java import JavaQueues
from tests.simulation.judging.judge import judge
from tests.simulation.judging.passed import Passed, Reset
from tests.simulation.judging.trouble import Trouble
from tests.simulation.judging.troubles import Troubles
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Ledger, Stored, key_of
from tests.simulation.loop import Host, SimulatedLoop
from tests.simulation.members import Handling, Home, JavaMember, Member
from tests.simulation.members.java_member import plan_of_java
from tests.simulation.members.options import options_of
from tests.simulation.name_servers import NameServer
from tests.simulation.names import GROUP, TOPIC
from tests.simulation.network import Network
from tests.simulation.offsets import StoredOffsets
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Event, Plan
from tests.simulation.producer import produce
from tests.simulation.slave import Slave, leave_to_slaves
from tests.simulation.timeline import Timeline
from tests.simulation.trials import undergo

MAX_HOMES = 4


class History:
    """A plan as it happens."""

    def __init__(self, plan: Plan, loop: SimulatedLoop) -> None:
        self.plan = plan
        self.loop = loop
        chance = random.Random(plan.seed)
        self.network = Network(loop, random.Random(chance.random()))
        self.network.slow, self.network.pieces = plan.slow, plan.pieces
        self.timeline = Timeline(loop)
        self.name_servers = [NameServer(loop, f"ns-{i}", f"10.2.0.{i}") for i in range(plan.name_servers)]
        self.brokers = [
            Broker(loop, f"broker-{'ab'[i]}", f"10.1.0.{i}", self.name_servers) for i in range(len(plan.queues))
        ]
        self.slaves = [
            Slave(loop, broker, f"10.3.0.{number}", plan.slaves, self.name_servers)
            for number, broker in enumerate(self.brokers)
            if plan.slaves is not None
        ]
        self.options = options_of(plan)
        self.first_options = self.options
        self.paused: list[Host] = []
        """The hosts that were suspended; some have resumed."""
        self.most_attempts = reconsume_limit(self.options)
        """The reconsume times after which a failed message is dead-lettered."""
        self.ledger = self._new_ledger()
        self.causes = Troubles()
        self.half_known_until = 0.0  # until then, a restarted name server may lack some brokers
        self.unharmed_until = float("inf")
        """The time of the first failure that is not recorded as a trouble, and does not excuse duplicates."""
        self.changes: list[float] = []
        """When the topic's queues or permissions changed."""
        self.comings: list[float] = []
        """When members joined or left."""
        self.cuts: list[tuple[float, str]] = []
        """When a trial cut a member's connections, and the member. A cut excuses only a failed send-back."""
        self.java = JavaQueues(self.timeline, self.changes)
        self.passed = Passed(self.ledger, self._explains_unheeded, self.causes.show_at)
        at_masters = Commits(self.ledger, self.passed, self._explains_lower)
        at_slaves = Commits(self.ledger, self.passed, lambda *_: True)
        forgotten = Forgotten(plan, self.brokers, self.name_servers, self.passed)
        self.offsets = StoredOffsets(self.timeline, at_masters, at_slaves, forgotten)
        self.members: list[Member] = []
        """The current members."""
        self.former: list[Member] = []
        """The members that left, or were killed."""
        self.homes: list[Home] = []
        """The machines of a broadcasting group."""
        self.sent: set[str] = set()
        """The keys of messages that a broker has acknowledged."""
        self.idle_seconds = 0.0
        """How long nothing was delivered after the last failure, although messages were left."""
        self.due_seconds = 0.0
        """How long the group may wait for the retries of popped messages."""
        self.trial_wrong: list[Wrong] = []
        """The faults found by the trials at the end."""
        self.most_queues = list(plan.queues)
        """The highest number of queues of the topic, for each broker."""
        self.pops = plan.way == "pop"
        """Whether the group pops now, by the brokers' settings."""
        self.switched: list[float] = []
        """When the group was switched between pull and pop."""
        self.most_invisible_seconds = plan.popping.invisible_seconds
        """The longest invisible time of the history."""
        self.unheard: set[Reset] = set()
        """Resets that no member can see: pushed resets of a queue without an owner, and resets to the stored offset
        that only the held pull of a previous owner reports."""
        self._handlers_chance = random.Random(chance.random())
        self._java_chance = random.Random(f"{plan.seed} members")
        self._producers_chance = random.Random(chance.random())
        self._keys: dict[bytes, str] = {}
        self._names = iter(range(10_000))
        self._disks = contextlib.ExitStack()
        self._coming: list[asyncio.Task[None]] = []

    async def run(self) -> Outcome:
        """Run all events, let the group come to rest, and judge the history."""
        for name_server in self.name_servers:
            await name_server.start()
        for broker, queues in zip(self.brokers, self.plan.queues, strict=True):
            broker.disk.on_offset = functools.partial(self.offsets.at_master, broker)
            broker.disk.on_reported = functools.partial(self._reset_reported, broker.name)
            broker.disk.on_record = functools.partial(self._stored, broker.name)
            broker.neighbours = self.brokers
            broker.commits = CommitThreads(random.Random(f"{self.plan.seed} {broker.name}"), self.plan.late_commits)
            await broker.start()
            broker.set_topic(TOPIC, read=queues, write=queues)
            if self.plan.way == "pop":
                broker.set_mode(TOPIC, GROUP, MessageRequestMode.POP, self.plan.popping.share_queues)
        for broker, slave in zip(self.brokers, self.slaves, strict=False):
            slave.disk.on_offset = functools.partial(self.offsets.at_slave, broker, slave)
            await slave.start()
        self.join()
        if self.plan.consume_from_where == "last_offset":
            await self._founded()
        sending = Host(self.loop, "producer").spawn(produce(self, self._producers_chance))
        happening = [asyncio.create_task(self._happen(event)) for event in self.plan.events]
        await asyncio.sleep(self.plan.seconds)
        await asyncio.gather(*happening)
        calm(self)
        await sending
        if await come_to_rest(self):
            await undergo(self)
        for ledger in self.ledgers:
            ledger.is_over = True
        for member in self.members:
            member.leave()
        self.former += self.members
        await asyncio.wait([member.task for member in self.former if not member.host.is_dead], timeout=END_SECONDS)
        self.timeline.note("judge", "the end")
        wrong, twice = judge(self)
        handled = sum(ledger.is_done(key) for ledger in self.ledgers for key in self.stored())
        seconds = self.timeline.now()
        return Outcome(self.plan, self.timeline.digest, seconds, handled, twice, wrong, self.timeline.lines)

    @property
    def ledgers(self) -> list[Ledger]:
        """The group's shared ledger, or the ledger of each machine of a broadcasting group."""
        return [home.ledger for home in self.homes] or [self.ledger]

    def join(self) -> None:
        """Let a member join."""
        if not self.plan.is_broadcasting:
            self._join(self.ledger, self.options)
        elif (home := self._free_home()) is not None:
            options = replace(self.options, local_offsets_directory=str(home.directory))
            home.members.append(self._join(home.ledger, options, home.name))

    def close(self) -> None:
        """Delete the disks of the machines. Call after the end of the loop, when members write no more."""
        self._disks.close()

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses of the name servers, for clients."""
        return tuple(one.address for one in self.name_servers)

    def any_member(self, chance: random.Random) -> Member | None:
        """Return a current member; None if there is none."""
        return chance.choice(self.members) if self.members else None

    def take_out(self, chance: random.Random) -> Member:
        """Choose a member that will leave, and count it as former."""
        member = self.members.pop(chance.randrange(len(self.members)))
        self.former.append(member)
        self.comings.append(self.timeline.now())
        return member

    def pause(self, host: Host, seconds: float) -> None:
        """Suspend a host for some time."""
        host.pause()
        self.paused.append(host)
        self.loop.call_later(seconds, self.resume, host)

    def resume(self, host: Host) -> None:
        """Resume a host, if it is still paused."""
        if host.is_paused:
            self.timeline.note(host.name, "goes on")
            host.resume()

    def trouble(self, what: str, *who: str, seconds: float = 0.0) -> None:
        """Record a failure: its kind, its duration, and the affected members and brokers."""
        self.timeline.note(" and ".join(who), what + (f" for {seconds:g} s" if seconds else ""))
        self.causes.add(Trouble(self.timeline.now(), self.timeline.now() + seconds, what, who))
        if what == "crashed":
            leave_to_slaves(self, who, seconds)
            # Routes lack the broker's queues meanwhile.
            self.changes += [self.timeline.now(), self.timeline.now() + seconds]

    def harm(self) -> None:
        """Record a deliberate failure, from now on. Members may warn of it."""
        self.unharmed_until = min(self.unharmed_until, self.timeline.now())

    def stored(self) -> dict[str, list[Stored]]:
        """Return the places of each message of the topic at the brokers, by its key."""
        stored: dict[str, list[Stored]] = {}
        for broker in self.brokers:
            for row in broker.disk.records():
                if row.topic == TOPIC:
                    key = self._keys.get(row.record) or self._keys.setdefault(row.record, key_of(row.record))
                    stored.setdefault(key, []).append(Stored(broker.name, row.queue_id, row.queue_offset))
        return stored

    def is_settled(self, key: str, places: list[Stored]) -> bool:
        """Whether a message needs no further handling."""
        if self.plan.is_broadcasting:
            return all(home.passed.is_settled(key, places) for home in self.homes)
        return self.passed.is_settled(key, places)

    def has_owner(self, reset: Reset) -> bool:
        """Whether a member owns the queue of a reset."""
        members = [member for member in (*self.members, *self.former) if not member.host.is_dead]
        return any((reset.broker, reset.queue) in member.queues(TOPIC) for member in members)

    @property
    def is_orderly(self) -> bool:
        """Whether queues must keep their order."""
        return self.plan.way == "orderly"

    def _join(self, ledger: Ledger, options: ConsumerOptions, home: str = "") -> Member:
        name = f"m{next(self._names)}"
        is_java = self._java_chance.random() < self.plan.java
        plan = plan_of_java(self.plan) if is_java else self.plan
        handling = Handling(name, ledger, plan, self._handlers_chance, self.options.consume_timeout_seconds)
        what = self.loop, name, self.nameservers, options, handling
        member = JavaMember(*what, self.java) if is_java else Member(*what)
        self.members.append(member)
        self.comings.append(self.timeline.now())
        self.timeline.note(member.name, f"joins on {home}" if home else "joins, of Java" if is_java else "joins")
        return member

    def _new_ledger(self) -> Ledger:
        return Ledger(
            self.timeline,
            self.most_attempts,
            repeats_in_place=self.plan.repeats_in_place,
            is_manual=not self.plan.auto_commit,
            drops=self.plan.is_broadcasting,
        )

    def _free_home(self) -> Home | None:
        """Return a machine without a running process, maybe a new one; None at the limit."""
        for home in self.homes:
            if home.is_free:
                return home
        if len(self.homes) == MAX_HOMES:
            return None
        directory = self._disks.enter_context(tempfile.TemporaryDirectory())
        ledger = self._new_ledger()
        passed = Passed(ledger, self._explains_unheeded, self.causes.show_at)
        passed.filters, passed.tags = self.passed.filters, self.passed.tags
        self.homes.append(Home(f"home-{len(self.homes)}", Path(directory), ledger, passed))
        return self.homes[-1]

    def come_back(self, left: Member) -> None:
        """Let a new member join on the machine of a member that left."""
        self._coming.append(self.loop.create_task(self._come_back(left)))

    async def _come_back(self, left: Member) -> None:
        if not left.host.is_dead:
            await asyncio.wait((left.task,))
        self.join()

    async def _happen(self, event: Event) -> None:
        await asyncio.sleep(event.at)
        await HAPPENINGS[event.what].happen(self, random.Random(event.seed))

    async def _founded(self) -> None:
        """Wait until the group has started in each queue: a new group skips messages that were sent before."""
        while not self.members[0].is_balanced:  # noqa: ASYNC110 - time jumps
            await asyncio.sleep(0.1)

    def _stored(self, broker: str, row: RecordRow) -> None:
        if row.topic == TOPIC:  # the hash of a one-character tag is its number
            place = Stored(broker, row.queue_id, row.queue_offset)
            self.passed.tags[place] = self.timeline.now(), chr(row.tags_code)
        elif row.topic == dlq_topic(GROUP):
            self.ledger.died(broker, key_of(row.record))
        elif topic_of_pop_retry(GROUP, row.topic) is not None:
            self.ledger.shown_again(broker, row.record)

    def _reset_reported(self, broker: str, key: str) -> None:
        topic, group, queue = key.split("@")
        if (topic, group) == (TOPIC, GROUP):
            self.passed.report(broker, int(queue), self.timeline.now())

    def _explains_unheeded(self, reset: Reset) -> bool:
        return reset in self.unheard or self.java.explains_unheeded(reset) or self.causes.explain_unheeded(reset)

    def _explains_lower(self, broker: str, queue: int, since: float, at: float) -> bool:
        if self.java.explains_lower(broker, queue, at) or self.causes.explain_lower(broker, at):
            return True
        # The first commit after a crash lacks the offsets that the broker lost, however late it is.
        return any(one.what == "crashed" and broker in one.who and since <= one.at <= at for one in self.causes)
