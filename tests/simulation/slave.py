"""A slave of a broker: it has an older copy of its data, serves reads, and accepts offsets, but no messages.

It behaves like Java's with `slaveReadEnable`: it copies records all the time, and topics, offsets, and pop modes every
10 s. The master's offsets overwrite the commits of members at the slave. A pull beyond its ends must retry, or gets a
corrected offset if the slave `checks_offsets`, as with offsetCheckInSlave. The slave divides the queues of groups that
pop, but serves no pops: a slave that does not act as master cannot store the invisible times, and no client asks it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.controller import BrokerController
from rmqd.broker.filter.message_filter import MessageFilter
from rmqd.broker.peer_channel import Answer, Channel, Processor, RemotingServer, Reply
from rmqd.broker.processors.client_processor import ClientProcessor
from rmqd.broker.processors.pull_processor import PullMessageProcessor
from rmqd.broker.processors.topic_processor import QueueEndsProcessor
from rmqd.broker.store.message_store import MessageStore, StoredArrival
from rmqd.broker.store.queue_store import ConsumeQueue, GetMessageStatus, GetResult
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.messages.properties import PullSysFlag
from tests.simulation.cluster import BROKER_PORT, FLUSH_SECONDS, ClusterDivision
from tests.simulation.disk import Disk
from tests.simulation.judging.trouble import Trouble
from tests.simulation.judging.wrong import Wrong
from tests.simulation.loop import START_SECONDS, Host, LoopClock, SimulatedLoop
from tests.simulation.name_servers import REGISTER_SECONDS, NameServer, Registration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Sequence

    from rmqd.broker.store.journal import RecordRow
    from tests.simulation.cluster import Broker
    from tests.simulation.history import History

BROKER_ID: Final = 1
SYNC_SECONDS: Final = 10.0
"""Java: SlaveSynchronize."""
_PROCESSORS: Final = (ClientProcessor, PullMessageProcessor, QueueEndsProcessor)


class SlaveHabits(NamedTuple):
    """How slaves behave."""

    copy_seconds: float
    """How often they copy records."""
    checks_offsets: bool
    """Whether they answer a pull beyond their ends like a master."""


class Slave:
    """A broker's slave, across restarts of its process."""

    def __init__(
        self,
        loop: SimulatedLoop,
        master: Broker,
        ip: str,
        habits: SlaveHabits,
        name_servers: Sequence[NameServer],
    ) -> None:
        self.name = f"{master.name}-slave"
        self.address = f"{ip}:{BROKER_PORT}"
        self.disk = Disk()
        self.host: Host
        self.is_up = False
        self.is_cut_off = False
        """Whether it receives nothing from the master."""
        self.synced_at = 0.0
        """The loop's time of its last synchronization; after a crash, of the last one that was flushed."""
        self.wrong: list[Wrong] = []
        self._written_at = 0.0
        self._ip = ip
        self._loop = loop
        self._master = master
        self._habits = habits
        self._name_servers = name_servers
        self._lives = 0
        master.stand_in = lambda: self._controller if self.is_up else None

    async def start(self) -> None:
        """Start a process with the data on the disk."""
        self._lives += 1
        self.host = Host(self._loop, f"{self.name}/{self._lives}")
        await self.host.spawn(self._start())

    @property
    def master(self) -> str:
        """The name of the slave's broker."""
        return self._master.name

    def kill(self) -> None:
        """End the process at once."""
        self.is_up = False
        self.host.kill()
        self.disk.crash()
        self.synced_at = self._written_at

    async def _start(self) -> None:
        settings = replace(BrokerSettings(), brokerName=self._master.name, brokerIP1=self._ip)
        self._controller = controller = BrokerController(settings, LoopClock(), self.disk, self.disk, self.address)
        self._store = controller.store = _CopiedStore(LoopClock(), self.address, settings, self.disk, self.disk)
        self._store.checks_offsets = self._habits.checks_offsets
        self._store.on_arrival(controller.held_pulls.arrived)
        server = RemotingServer(self.name)
        for processor in _PROCESSORS:
            server.serve({code: self._watched(one) for code, one in processor(controller).processors().items()})
        server.serve({RequestCode.QUERY_ASSIGNMENT: ClusterDivision(controller, self._master.neighbours).assignment})
        server.serve(dict.fromkeys(_REFUSED, _refuse))
        await server.listen(self._ip, BROKER_PORT)
        self.is_up = True
        work = (
            controller.expire_clients(),
            self._copy_often(),
            self._sync_often(),
            self._flush(),
            self._register(),
        )
        self._running = [asyncio.create_task(one) for one in work]

    def _watched(self, processor: Processor) -> Processor:
        def process(channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
            if int(request.ext_fields.get("sysFlag", "0")) & PullSysFlag.COMMIT_OFFSET:
                self.wrong.append(Wrong("commit at a slave", f"{self.name}, by {channel.address}"))
            return processor(channel, request)

        return process

    async def _copy_often(self) -> None:
        while True:
            if self._hears_master():
                for row in self._master.disk.records()[len(self.disk.records()) :]:
                    self._store.copy(row)
            await asyncio.sleep(self._habits.copy_seconds)

    async def _sync_often(self) -> None:
        while True:
            master = self._master.controller
            if self._hears_master() and master is not None:
                for topic in master.topics.all().values():
                    self._controller.topics.put(topic)
                for mode in master.groups.request_modes():
                    self._controller.groups.set_request_mode(mode)
                for topic_name in master.topics.all():
                    for group in master.offsets.groups_of(topic_name):
                        former = self._controller.offsets.queues(group, topic_name)
                        for queue, offset in master.offsets.queues(group, topic_name).items():
                            if former.get(queue) != offset:
                                self._controller.offsets.commit(group, topic_name, queue, offset)
                self.synced_at = self._loop.now
            await asyncio.sleep(SYNC_SECONDS)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self.disk.flush()
            self._written_at = self.synced_at

    async def _register(self) -> None:
        while True:
            own = Registration(
                self._master.name, self.host, self.address, self._controller.topics.all(), broker_id=BROKER_ID
            )
            for name_server in self._name_servers:
                name_server.register(own)
            await asyncio.sleep(REGISTER_SECONDS)

    def _hears_master(self) -> bool:
        master = self._master
        if self.is_cut_off or not master.is_up or master.host.is_paused:
            return False
        return not self._loop.network.are_apart(self.host, master.host)


class _CopiedStore(MessageStore):
    """A store with records copied from another one."""

    checks_offsets = False

    def copy(self, row: RecordRow) -> None:
        """Append a record of the master."""
        queue = self._queues.setdefault((row.topic, row.queue_id), ConsumeQueue())
        self._log.append(row)
        queue.append(row.commit_log_offset, len(row.record), row.tags_code, row.store_timestamp)
        arrival = StoredArrival(row.topic, row.queue_id, row.queue_offset, row.tags_code, row.record)
        for listener in self._listeners:
            listener(arrival)

    def get(
        self, topic: str, queue_id: int, offset: int, max_nums: int, wanted: MessageFilter | None = None
    ) -> GetResult:
        """Read as a slave does."""
        found = super().get(topic, queue_id, offset, max_nums, wanted)
        if offset and not self.checks_offsets and found.status in _BEYOND:
            return found._replace(status=GetMessageStatus.NO_MATCHED_MESSAGE, next_begin_offset=offset)
        return found


_BEYOND: Final = frozenset(
    (GetMessageStatus.NO_MESSAGE_IN_QUEUE, GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.OFFSET_TOO_SMALL)
)
_REFUSED: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)


def _refuse(*_: object) -> Reply:
    return Reply(ResponseCode.SYSTEM_ERROR, "no master available along with it")


def leave_to_slaves(history: History, brokers: Collection[str], seconds: float) -> None:
    """Record that slaves, with their current data, may stand in for these brokers for some time."""
    until = history.timeline.now() + seconds
    for broker, slave in zip(history.brokers, history.slaves, strict=False):
        if broker.name in brokers:
            synced_at = slave.synced_at - START_SECONDS
            history.causes.add(Trouble(synced_at, until, "behind", (broker.name,)))
            if history.switched and history.switched[-1] > synced_at:  # a slave may have the former mode
                history.switched += [history.timeline.now(), until]


def forget(history: History, slave: Slave) -> None:
    """Record that a slave, which may stand in for its broker now, has lost its unflushed offsets."""
    now = history.timeline.now()
    for one in list(history.causes):
        if one.what == "behind" and slave.master in one.who and one.until >= now:
            history.causes.add(one._replace(at=min(one.at, slave.synced_at - START_SECONDS)))
