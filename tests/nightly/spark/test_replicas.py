"""How the responses of a broker's replicas affect a range, with the source and with a handler; by real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.pull.accept import decompress_bodies
from rmqd.errors import DataLossError, ProtocolError, RemotingError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader
from tests.client.peer import Peer, Reply, route_of
from tests.consumer.blocks import with_bit_flipped
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.handlers.range_run import AsyncRangePuller, PulledResponse  # noqa: E402
from rmqd.spark.session.queue_range import QueueRange  # noqa: E402
from rmqd.spark.session.spark_access import ClientAccess  # noqa: E402
from rmqd.spark.session.spark_cluster import cluster_of  # noqa: E402
from rmqd.spark.source import range_plan  # noqa: E402
from rmqd.spark.source.range_fetch import read_ranges  # noqa: E402
from rmqd.spark.source.source_columns import DecodingOptions  # noqa: E402
from tests.spark.range_cases import (  # noqa: E402
    AWAY,
    BROKER,
    CASES,
    COUNT,
    EVERYTHING,
    MASTER,
    RUNS,
    SLAVE,
    TOPIC,
    Case,
    Scripted,
    damaged,
    having,
    queue_range,
    wanted,
)

OTHER_TOPIC = "bills"
"""The broker always has it, which means nothing for the queues of another topic."""


class Cluster:
    """A name server, a master and a slave that respond as a case defines."""

    def __init__(self) -> None:
        self.name_server = Peer()
        self.processes = (Peer(), Peer())
        self._scripted: Scripted | None = None

    @property
    def addresses(self) -> tuple[str, str]:
        """The addresses of the master and of the slave."""
        master, slave = self.processes
        return master.address, slave.address

    def play(self, case: Case, *, loss_fails: bool) -> QueueRange:
        """Respond as the case defines from now on; return the range to pull."""
        self._scripted = Scripted(case)
        for process, peer in enumerate(self.processes):
            peer.on(RequestCode.PULL_MESSAGE, partial(self._pulled, process))
        self.name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._routed)
        access = ClientAccess(ClientOptions(nameservers=(self.name_server.address,)))
        return queue_range(case, self.addresses, access, loss_fails=loss_fails)

    def _pulled(self, process: int, command: RemotingCommand) -> Reply | None:
        assert self._scripted is not None
        header = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        reply = self._scripted.pull(process, header.queue_offset, header.max_msg_nums)
        if reply is AWAY:
            self.processes[process].cut()
            return None
        return reply

    def _routed(self, command: RemotingCommand) -> Reply:
        assert self._scripted is not None
        addresses = self.addresses
        if command.ext_fields["topic"] != TOPIC:
            return Reply(body=route_of({BROKER: addresses[MASTER]}, 1).to_json())
        named = self._scripted.route
        if named is None:
            return Reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server for the topic")
        brokers = {BROKER: {one: addresses[one] for one in named}} if named else {"broker-b": {MASTER: "127.0.0.1:1"}}
        return Reply(body=route_of(brokers, 1).to_json())


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses a hundred times shorter."""
    for name in ("FIRST_RETRY_PAUSE_SECONDS", "MAX_RETRY_PAUSE_SECONDS"):
        monkeypatch.setattr(range_plan, name, getattr(range_plan, name) / 100)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A cluster with all three running."""
    cluster = Cluster()
    async with cluster.name_server, cluster.processes[MASTER], cluster.processes[SLAVE]:
        yield cluster


async def by_source(queue_range: QueueRange) -> list[int]:
    """Return the offsets that `spark.read` returns for a range."""

    def read() -> list[int]:
        cluster_of(queue_range.access).queues([OTHER_TOPIC])
        batches = read_ranges([queue_range], DecodingOptions(("queue_offset",)))
        return [row["queue_offset"] for batch in batches for row in batch.to_pylist()]

    return await asyncio.to_thread(read)


async def by_handler(queue_range: QueueRange) -> list[int]:
    """Return the offsets that a handler of `engine: spark` receives for a range."""
    client = ClientInstance(queue_range.access.client_options())
    await client.routes.refresh(OTHER_TOPIC)
    pulls = AsyncRangePuller(client, queue_range, lambda block, low: decompress_bodies(block, 1 << 20, 1 << 20, low))
    found: list[int] = []
    try:
        while pulls.plan.is_unfinished:
            while pulls.plan.add_span():
                pass
            pulled = await pulls.next_response()
            if isinstance(pulled, PulledResponse) and pulled.block is not None:
                messages = pulled.block.messages
                found += [one.queue_offset for one in messages if pulled.start <= one.queue_offset < pulled.end]
    finally:
        await client.close()
    return found


Read = Callable[[QueueRange], Awaitable[list[int]]]

READERS = [by_source, by_handler]


@pytest.mark.slow
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(("case", "loss_fails"), RUNS, ids=str)
async def test_the_outcome_of_a_range(cluster: Cluster, read: Read, case: Case, loss_fails: bool) -> None:
    """Both readers are tested with the cases of `test_range_plan`."""
    asked, outcome = cluster.play(case, loss_fails=loss_fails), wanted(case, loss_fails=loss_fails)
    with capture_logs() as logs:
        if isinstance(outcome, tuple):
            assert tuple(await read(asked)) == outcome
        else:
            with pytest.raises(outcome):
                await read(asked)
    lost = sum(entry["skipped"] for entry in logs if entry["event"] == "spark.data_lost")
    assert lost == (0 if loss_fails else case.lost)


@pytest.mark.parametrize("read", READERS)
async def test_a_silent_connection_is_replaced(cluster: Cluster, read: Read) -> None:
    """It stays open and returns nothing, because a load balancer or a firewall has forgotten it."""
    master = cluster.processes[MASTER]
    asked = cluster.play(Case(name="all is well"), loss_fails=True)
    answers = having(COUNT)

    def silent_at_first(command: RemotingCommand) -> Reply | None:
        header = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        return None if master.connections < 2 else answers(header.queue_offset, header.max_msg_nums)

    master.on(RequestCode.PULL_MESSAGE, silent_at_first)
    hasty = replace(asked.pull, timeout_seconds=0.2, patience_seconds=3.0)
    only_master = replace(asked, pull=hasty, replicas=asked.replicas[:1])
    assert tuple(await read(only_master)) == EVERYTHING


@pytest.mark.parametrize("read", READERS)
async def test_an_error_names_the_replica_that_was_queried(cluster: Cluster, read: Read) -> None:
    """It also says that the master must be asked."""
    (alone,) = [case for case in CASES if case.name == "the slave is alone, and behind"]
    with pytest.raises(RemotingError, match=r"slave 1 .* does not have offset 4 yet; the master must be asked"):
        await read(cluster.play(alone, loss_fails=False))


@pytest.mark.parametrize("read", READERS)
async def test_an_error_names_the_damaged_response(cluster: Cluster, read: Read) -> None:
    """It also describes the damage, so that the broker's store can be examined."""
    (broken,) = [case for case in CASES if case.name == "the answers of the only replica have a wrong magic for good"]
    said = r"^orders@broker-a:0: the response to a pull at offset 4 is damaged: a message .* magic 0x6E6F6E65"
    with pytest.raises(ProtocolError, match=said):
        await read(cluster.play(broken, loss_fails=False))


@pytest.mark.parametrize("read", READERS)
async def test_a_data_loss_names_the_offsets_of_the_broker(cluster: Cluster, read: Read) -> None:
    """An operator looks for them first."""
    (early,) = [case for case in CASES if case.name == "the master ends early and says PULL_NOT_FOUND (*)"]
    with pytest.raises(DataLossError, match="offsets 4 to 11 are missing: the broker has 0 to 3"):
        await read(cluster.play(early, loss_fails=True))


async def test_a_handlers_client_knows_the_route_before_messages_arrive(cluster: Cluster) -> None:
    """It needs the route to send failed messages back, whatever the range knew about the broker."""
    asked = cluster.play(Case(name="all is well"), loss_fails=True)
    client = ClientInstance(asked.access.client_options())
    pulls = AsyncRangePuller(client, asked, lambda block, low: decompress_bodies(block, 1 << 20, 1 << 20, low))
    try:
        pulls.plan.add_span()
        assert isinstance(await pulls.next_response(), PulledResponse)
        assert client.routes.master(BROKER) == cluster.addresses[MASTER]
    finally:
        await client.close()


async def test_messages_with_a_wrong_offset_are_pulled_again(cluster: Cluster) -> None:
    """One wrong bit makes the first message of three responses seem to be outside the range."""

    def wrong(body: bytes) -> bytes:
        return body[:20] + bytes((body[20] ^ 64,)) + body[21:]

    case = Case(name="a wrong bit", master=lambda: damaged(wrong, 3))
    assert await by_handler(cluster.play(case, loss_fails=True)) == list(EVERYTHING)


async def test_a_message_that_is_stored_under_a_wrong_offset_is_corrupt(cluster: Cluster) -> None:
    """The other messages are handled, and on_corrupt_message decides about this message."""

    def stored(offset: int, most: int) -> Reply:
        reply, count = having(COUNT)(offset, most), min(most, COUNT - offset)
        if not offset <= 5 < offset + count:
            return reply
        at = (5 - offset) * (len(reply.body) // count) + 27
        return replace(reply, body=with_bit_flipped(reply.body, at, 6))

    case = Case(name="a wrong bit in each replica", master=lambda: stored, slave=lambda: stored, patience=1.0)
    asked = cluster.play(case, loss_fails=True)
    assert await by_handler(asked) == [offset for offset in EVERYTHING if offset != 5]
    with pytest.raises(ProtocolError, match="message at offset 5 is corrupt: its stored offset 69 contradicts"):
        await by_source(asked)
