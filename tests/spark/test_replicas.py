"""What a slave's answers do to a range that is read: nothing is lost by its word, whoever pulls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Self

import pytest

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.pull.opening import open_bodies
from rmqd.errors import DataLossError, RemotingError
from rmqd.wire.bodies.route import TopicRouteData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.messages.encode import StoredMessage, encode_message
from tests.client.peer import Peer, Reply, route_of, routes
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.access import Access  # noqa: E402
from rmqd.spark.handlers.range_pulls import RangePulls  # noqa: E402
from rmqd.spark.queue_range import PullSettings, QueueRange, Replica  # noqa: E402
from rmqd.spark.source import range_plan  # noqa: E402
from rmqd.spark.source.fetch import read_range  # noqa: E402

TOPIC, BROKER = "orders", "broker-a"
COUNT, ON_SLAVE = 12, 4
MASTER, SLAVE = 0, 1
PATIENCE_SECONDS = 20.0
MORE_ANSWERS = 8  # than an empty end of a master's queue takes to be believed


@dataclass
class Replicas:
    """A name server, a master with twelve messages, and a slave that has copied four of them."""

    name_server: Peer = field(default_factory=Peer)
    master: Peer = field(default_factory=Peer)
    slave: Peer = field(default_factory=Peer)
    refusal: ResponseCode = ResponseCode.PULL_RETRY_IMMEDIATELY
    """How the slave says that it does not have an offset."""
    refused: int = 0
    after_refusals: Callable[[], object] = lambda: None
    """Called when it has said so often."""
    _by_topic: dict[str, TopicRouteData] = field(default_factory=dict)
    _ending: AsyncExitStack = field(default_factory=AsyncExitStack)
    _waking: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        for peer in (self.name_server, self.master, self.slave):
            await self._ending.enter_async_context(peer)
        self.name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes(self._by_topic))
        self.master.on(RequestCode.PULL_MESSAGE, lambda command: self.answer(command, COUNT))
        self.slave.on(RequestCode.PULL_MESSAGE, self._slave_answer)
        self.know(MASTER, SLAVE)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._waking)
        await self._ending.aclose()

    def replicas(self, *ids: int) -> tuple[Replica, ...]:
        """Those of these ids, as a plan has them."""
        return tuple(Replica(one, (self.master, self.slave)[one].address) for one in ids)

    def know(self, *ids: int) -> None:
        """Have the name server name these replicas from now on."""
        addresses = {replica.broker_id: replica.address for replica in self.replicas(*ids)}
        self._by_topic[TOPIC] = route_of({BROKER: addresses}, 1)

    def wake_master(self) -> None:
        """Have the master answer again."""
        self._waking.append(asyncio.create_task(self.master.listen()))

    def range(self, *known: int, loss_fails: bool = True, patience: float = PATIENCE_SECONDS) -> QueueRange:
        """All twelve messages, by a plan that knew these replicas."""
        return QueueRange(
            topic=TOPIC,
            broker_name=BROKER,
            queue_id=0,
            start=0,
            end=COUNT,
            access=Access(ClientOptions(nameservers=(self.name_server.address,))),
            replicas=self.replicas(*known),
            pull=PullSettings(batch_size=2, patience_seconds=patience),
            fail_on_data_loss=loss_fails,
        )

    def _slave_answer(self, command: RemotingCommand) -> Reply:
        if PullMessageRequestHeader.from_ext_fields(command.ext_fields).queue_offset >= ON_SLAVE:
            self.refused += 1
            if self.refused == MORE_ANSWERS:
                self.after_refusals()
        return self.answer(command, ON_SLAVE)

    def answer(self, command: RemotingCommand, end: int) -> Reply:
        """What a replica answers that has the messages before `end`."""
        header = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        offset = header.queue_offset
        if offset >= end:
            return Reply(self.refusal, "", PullMessageResponseHeader(offset, 0, end).ext_fields())
        following = min(offset + header.max_msg_nums, end)
        body = b"".join(
            encode_message(StoredMessage(topic=TOPIC, queue_id=0, body=b"x", queue_offset=number))
            for number in range(offset, following)
        )
        return Reply(ResponseCode.SUCCESS, "", PullMessageResponseHeader(following, 0, end).ext_fields(), body)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a twentieth."""
    for name in ("FIRST_PAUSE_SECONDS", "LONGEST_PAUSE_SECONDS"):
        monkeypatch.setattr(range_plan, name, getattr(range_plan, name) / 20)


@pytest.fixture
async def cluster() -> AsyncIterator[Replicas]:
    """All three run."""
    async with Replicas() as cluster:
        yield cluster


async def by_source(queue_range: QueueRange) -> list[int]:
    """The offsets that `spark.read` gives of a range."""

    def read() -> list[int]:
        batches = read_range(queue_range, ["queue_offset"])
        return [row["queue_offset"] for batch in batches for row in batch.to_pylist()]

    return await asyncio.to_thread(read)


async def by_handler(queue_range: QueueRange) -> list[int]:
    """The offsets that a handler of `engine: spark` is given of a range."""
    client = ClientInstance(queue_range.access.client_options())
    pulls = RangePulls(client, queue_range, lambda block, low: open_bodies(block, 1 << 20, 1 << 20, low))
    found: list[int] = []
    try:
        while pulls.more:
            while pulls.plan():
                pass
            pulled = await pulls.take()
            if pulled is not None and pulled.block is not None:
                messages = pulled.block.messages
                found += [one.queue_offset for one in messages if pulled.low <= one.queue_offset < pulled.high]
    finally:
        pulls.close()
        await client.close()
    return found


Read = Callable[[QueueRange], Awaitable[list[int]]]

READERS = [by_source, by_handler]
EVERYTHING = list(range(COUNT))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("loss_fails", [True, False])
@pytest.mark.parametrize("refusal", ["PULL_OFFSET_MOVED", "PULL_RETRY_IMMEDIATELY", "PULL_NOT_FOUND"])
async def test_a_slave_that_is_behind_costs_no_message(
    cluster: Replicas, read: Read, loss_fails: bool, refusal: str
) -> None:
    """Its master is away meanwhile, and has what the slave does not."""
    cluster.refusal = ResponseCode[refusal]
    await cluster.master.down()
    cluster.after_refusals = cluster.wake_master
    assert await read(cluster.range(MASTER, SLAVE, loss_fails=loss_fails)) == EVERYTHING
    assert cluster.refused >= MORE_ANSWERS


@pytest.mark.parametrize("read", READERS)
async def test_a_connection_that_fell_silent_is_replaced(cluster: Replicas, read: Read) -> None:
    """It stays open, and nothing comes back by it: a balancer or a firewall has forgotten it."""
    cluster.know(MASTER)
    cluster.master.on(
        RequestCode.PULL_MESSAGE,
        lambda command: None if cluster.master.connections < 2 else cluster.answer(command, COUNT),
    )
    asked = cluster.range(MASTER)
    assert await read(replace(asked, pull=replace(asked.pull, timeout_seconds=0.2, patience_seconds=3.0))) == EVERYTHING


@pytest.mark.parametrize("read", READERS)
async def test_a_route_that_names_no_master_is_asked_for_anew(cluster: Replicas, read: Read) -> None:
    """The plan was made while the master was away."""
    cluster.know(SLAVE)
    cluster.after_refusals = lambda: cluster.know(MASTER, SLAVE)
    assert await read(cluster.range(SLAVE, loss_fails=False)) == EVERYTHING


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("refusal", ["PULL_OFFSET_MOVED", "PULL_RETRY_IMMEDIATELY"])
async def test_a_broker_that_is_master_no_more_loses_nothing(cluster: Replicas, read: Read, refusal: str) -> None:
    """The plan was made before another one was elected."""
    cluster.refusal = ResponseCode[refusal]
    former = Replica(MASTER, cluster.slave.address)
    assert await read(replace(cluster.range(loss_fails=False), replicas=(former,))) == EVERYTHING


@pytest.mark.parametrize("read", READERS)
async def test_a_slave_alone_fails_its_task_and_skips_nothing(cluster: Replicas, read: Read) -> None:
    """Once `unavailableToleranceMs` is over: its next attempt begins at the same offset."""
    cluster.know(SLAVE)
    with pytest.raises(RemotingError, match=r"slave 1 .* does not have offset 4 yet; its master has to be asked"):
        await read(cluster.range(SLAVE, loss_fails=False, patience=0.3))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("refusal", ["PULL_OFFSET_MOVED", "PULL_RETRY_IMMEDIATELY", "PULL_NOT_FOUND"])
async def test_a_master_says_what_is_lost(cluster: Replicas, read: Read, refusal: str) -> None:
    """At once: nobody has it."""
    cluster.refusal = ResponseCode[refusal]
    cluster.master.on(RequestCode.PULL_MESSAGE, lambda command: cluster.answer(command, ON_SLAVE))
    assert await read(cluster.range(MASTER, SLAVE, loss_fails=False)) == [0, 1, 2, 3]
    with pytest.raises(DataLossError, match="offsets 4 to 11 were to be read, and the broker holds 0 to 3"):
        await read(cluster.range(MASTER, SLAVE))
