"""Sending of trace records to the trace topic: in batches, and without delaying messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
import structlog
from structlog.testing import LogCapture

from rmqd.client.client_options import TraceOptions
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.route_table import RouteTable
from rmqd.client.sending import trace_dispatcher
from rmqd.client.sending.producer import Producer
from rmqd.client.sending.trace_dispatcher import TraceDispatcher
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors.broker_errors import TopicNotExistError
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.headers.send_headers import SendMessageRequestHeaderV2
from rmqd.wire.messages.properties import parse_properties
from rmqd.wire.trace import TracePart
from tests.client.peer import Peer, Reply, route_of, stored
from tests.client.running import running
from tests.clock import ManualClock

SEND = RequestCode.SEND_MESSAGE_V2
TOPIC = "RMQ_SYS_TRACE_TOPIC"
GROUP = "_INNER_TRACE_PRODUCER-mailer-CONSUME-1"


class World:
    """A dispatcher with batches of ten calls, a broker, and a manual clock."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.has_topic = True
        self.clock = ManualClock()
        self.remoting = RemotingClient(clock=self.clock)
        producer = Producer(self.remoting, RouteTable(self._route_of, self.clock), clock=self.clock)
        self.dispatcher = TraceDispatcher(producer, TraceOptions(TOPIC, 10), GROUP, self.clock)

    async def _route_of(self, topic: str) -> TopicRouteData:
        if not self.has_topic:
            raise TopicNotExistError(ResponseCode.TOPIC_NOT_EXIST, "unknown", "a name server")
        return route_of({"b0": self.peer.address}, queues=2)

    def append(self, *numbers: int, size: int = 1) -> None:
        for number in numbers:
            self.dispatcher.append((TracePart("r" * size + f"{number}\x02", f"id{number}", None),), 1)

    def sent(self) -> list[str]:
        """The KEYS of each trace message."""
        return [
            parse_properties(SendMessageRequestHeaderV2.from_ext_fields(one.ext_fields).properties or "")["KEYS"]
            for one in self.peer.got(SEND)
        ]

    async def counted(self, **counts: int) -> None:
        wanted = {"sent": 0, "full": 0, "failed": 0} | counts
        counts = self.dispatcher.counts
        await self.clock.until(
            lambda: counts == wanted, f"{counts} becomes {wanted}", most=trace_dispatcher.POLL_SECONDS
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with Peer() as peer:
        peer.on(SEND, lambda command: stored(queue_id=int(command.ext_fields["e"])))
        world = World(peer)
        yield world
        await world.remoting.close()


@pytest.fixture
def few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for full batches 120 times a minute, not 600 times."""
    monkeypatch.setattr(trace_dispatcher, "POLL_SECONDS", 0.5)


@pytest.fixture
def logged() -> LogCapture:
    capture = LogCapture()
    structlog.configure(processors=[capture])
    return capture


async def test_full_batches_are_sent_at_once_and_the_rest_after_five_seconds(world: World) -> None:
    async with running(world.dispatcher.run()):
        world.append(*range(25))
        await world.counted(sent=20)
        assert sorted(len(keys.split()) for keys in world.sent()) == [10, 10]
        await world.clock.advance(5)
        await world.counted(sent=25)
    assert sorted(key for keys in world.sent() for key in keys.split()) == sorted(f"id{n}" for n in range(25))
    header = SendMessageRequestHeaderV2.from_ext_fields(world.peer.got(SEND)[0].ext_fields)
    assert (header.producer_group, header.topic) == (GROUP, TOPIC)


async def test_before_flush_can_append_records_before_a_flush(world: World) -> None:
    world.dispatcher.before_flush = lambda: world.append(7)
    async with running(world.dispatcher.run()):
        await world.clock.advance(5)
        await world.counted(sent=1)
    assert world.sent() == ["id7"]


@pytest.mark.usefixtures("few_looks")
async def test_waiting_records_are_limited_and_dropped_records_are_logged(
    world: World, logged: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_dispatcher, "MAX_WAITING_CHARACTERS", 9000)
    world.append(*range(8), size=1000)
    assert not world.dispatcher.is_full
    world.append(8, size=1000)
    assert world.dispatcher.is_full
    world.append(10, 11)
    world.dispatcher.drop(4)
    assert world.dispatcher.counts == {"sent": 0, "full": 6, "failed": 0}
    async with running(world.dispatcher.run()):
        await world.clock.until(lambda: told(logged), "the loss is logged")
        world.dispatcher.drop(3)
        await world.clock.advance(59)
        [line] = told(logged)
        assert (line["records"], line["topic"], line["log_level"]) == (6, TOPIC, "warning")
        await world.clock.advance(1)
        assert len(told(logged)) == 2, "later losses are logged after a minute"


def told(logged: LogCapture) -> list[dict[str, object]]:
    return [dict(entry) for entry in logged.entries if entry["event"] == "trace.dropped"]


async def test_close_sends_waiting_records_and_interrupted_batches(world: World) -> None:
    held = asyncio.Event()

    async def once_let_go(_: object) -> Reply:
        await held.wait()
        return stored(queue_id=0)

    world.peer.on(SEND, once_let_go)
    async with running(world.dispatcher.run()):
        world.append(*range(12))
        await world.clock.until(lambda: world.peer.got(SEND), "a batch is sent")
    held.set()
    await world.dispatcher.close()
    assert world.dispatcher.counts == {"sent": 12, "full": 0, "failed": 0}
    assert {key for keys in world.sent() for key in keys.split()} == {f"id{number}" for number in range(12)}


__all__ = ["few_looks", "logged", "world"]


async def test_handlers_threads_may_append(world: World) -> None:
    threads = [threading.Thread(target=world.append, args=range(at, at + 50)) for at in range(0, 400, 50)]
    async with running(world.dispatcher.run()):
        for thread in threads:
            thread.start()
        await world.counted(sent=400)
    assert {key for keys in world.sent() for key in keys.split()} == {f"id{number}" for number in range(400)}
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("few_looks")
async def test_a_missing_topic_is_requested_rarely_and_logged_once_a_minute(world: World, logged: LogCapture) -> None:
    world.has_topic = False
    async with running(world.dispatcher.run()):
        world.append(*range(200))
        await world.clock.until(lambda: world.dispatcher.counts["failed"], "the first senders fail")
        assert world.dispatcher.counts["failed"] <= 10 * trace_dispatcher.MAX_SENDS_IN_FLIGHT
        [first] = told(logged)
        assert "does not exist" in str(first["reason"])
        await world.clock.advance(60)
        assert len(told(logged)) == 2, "later losses are logged after a minute"
        assert sum(int(str(line["records"])) for line in told(logged)) <= world.dispatcher.counts["failed"]
        world.has_topic = True
        await world.clock.until(lambda: world.dispatcher.counts["sent"], "records are sent once the topic exists")
        await world.clock.until(lambda: sum(world.dispatcher.counts.values()) == 200, "each record counts once")


async def test_an_interrupted_batch_counts_as_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_dispatcher, "MAX_WAITING_CHARACTERS", 9000)
    world.peer.on(SEND, None)
    async with running(world.dispatcher.run()):
        world.append(*range(12), size=700)
        await world.clock.until(lambda: world.peer.got(SEND), "a batch is sent")
    assert not world.dispatcher.is_full
    world.append(12, size=700)
    assert world.dispatcher.is_full


async def test_close_waits_only_a_limited_time_for_brokers(world: World, logged: LogCapture) -> None:
    world.peer.on(SEND, None)
    world.append(*range(12))
    closing = asyncio.create_task(world.dispatcher.close())
    await world.clock.advance(trace_dispatcher.CLOSE_SECONDS)
    assert closing.done()
    assert world.dispatcher.counts == {"sent": 0, "full": 0, "failed": 12}
    assert sum(int(str(line["records"])) for line in told(logged)) == 12
