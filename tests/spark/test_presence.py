"""A driver on Spark and members of the local engine over an embedded broker: one engine at a time has a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest
from structlog.testing import capture_logs

from rmqd.client.api.admin import reset_offset
from rmqd.client.api.group import consumer_running_info, get_consumer_list
from rmqd.client.client_id import is_spark
from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.codes import RequestCode
from rmqd.config.model.root import RootConfig
from rmqd.consumer.rebalance import rivals
from rmqd.errors import GroupHeldElsewhereError, RmqdError, RouteNotFoundError
from rmqd.spark.engine import presence as module
from rmqd.spark.engine.presence import Presence
from rmqd.spark.group_order import GroupOrder
from rmqd.wire.bodies.group import ResetOffsetBody
from rmqd.wire.bodies.running_info import ProcessQueueInfo
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.clock import next_millisecond
from tests.consumer.members import Member, member
from tests.seen import Seen
from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.waiting import eventually

GROUP = "reports"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits in proportion, ten times as fast."""
    for name in ("JOINING_SECONDS", "JUNIOR_SECONDS", "SENIOR_SECONDS"):
        monkeypatch.setattr(rivals, name, getattr(rivals, name) / 10)
    monkeypatch.setattr(module, "LOOK_AGAIN_SECONDS", module.LOOK_AGAIN_SECONDS / 10)
    monkeypatch.setattr("rmqd.consumer.rebalance.rebalance.UNBALANCED_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def topic(broker: EmbeddedBroker) -> None:
    broker.fill("orders", 4, 2)


def order_of(broker: EmbeddedBroker, *, where: str = "last_offset", **client: object) -> GroupOrder:
    group = {"engine": "spark", "subscriptions": {"orders": "*"}, "handler": {"plugin": "noop"}}
    group["consume_from_where"] = where
    values = {"nameserver": broker.nameserver, "client": client, "groups": {GROUP: group}}
    return GroupOrder(GROUP, RootConfig.model_validate(values))


def pushed(offsets: dict[MessageQueue, int]) -> RemotingCommand:
    """A reset as a broker pushes it."""
    fields = {"topic": "orders", "group": GROUP, "timestamp": "0", "isForce": "true"}
    body = ResetOffsetBody(offsets).to_json()
    return RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext_fields=fields, body=body)


@contextlib.asynccontextmanager
async def driver(broker: EmbeddedBroker) -> AsyncIterator[Presence]:
    """A presence that has joined, and leaves at the end."""
    presence = Presence(order_of(broker), held=lambda: {queue("orders", 1): ProcessQueueInfo(commit_offset=7)})
    await presence.join()
    try:
        yield presence
    finally:
        await presence.leave()


@contextlib.asynccontextmanager
async def local(broker: EmbeddedBroker, seen: Seen) -> AsyncIterator[Member]:
    """A member of the local engine; that the group is held elsewhere is how it may have ended."""
    try:
        async with member(
            broker.nameserver, seen, group=GROUP, subscriptions=["orders"], consume_from_where="first_offset"
        ) as one:
            yield one
    except ExceptionGroup as error:
        if error.split(GroupHeldElsewhereError)[1] is not None:
            raise


@contextlib.asynccontextmanager
async def operator(broker: EmbeddedBroker) -> AsyncIterator[tuple[ClientInstance, str]]:
    """A client that only asks, and the broker's address."""
    client = ClientInstance(ClientOptions(nameservers=(broker.nameserver,)))
    try:
        await client.routes.lookup("orders")
        yield client, str(client.routes.address("broker-a"))
    finally:
        await client.close()


async def members(broker: EmbeddedBroker) -> list[str]:
    """Who the broker says is in the group."""
    async with operator(broker) as (client, address):
        return await get_consumer_list(client.remoting, address, GROUP)


async def has_everything(one: Member) -> None:
    await eventually(lambda: len(one.owned()) == 4, "it has all queues")


async def test_a_driver_is_in_the_group_until_it_leaves(broker: EmbeddedBroker) -> None:
    async with driver(broker) as presence:
        assert await members(broker) == [presence.client_id]
        assert is_spark(presence.client_id)
    assert await members(broker) == []


async def test_its_client_id_is_a_sparks_whatever_the_instance_is_called(broker: EmbeddedBroker) -> None:
    """And no other driver has the same, where two run by one configuration."""
    ids = [Presence(order_of(broker, instance_name=name)).client_id for name in ("DEFAULT", "room@one", "room@one")]
    assert all(map(is_spark, ids))
    assert len(set(ids)) == 3
    assert "spark-room@one-" in ids[1]


async def test_a_driver_does_not_start_where_a_local_member_consumes(broker: EmbeddedBroker) -> None:
    """And the member notices nothing."""
    async with local(broker, Seen()) as one:
        await has_everything(one)
        before = one.consumer.snapshot().rebalances
        with capture_logs() as logs, pytest.raises(GroupHeldElsewhereError) as caught:
            await Presence(order_of(broker)).join()
        assert (caught.value.engine, caught.value.client_id) == ("local", one.client.client_id)
        assert await members(broker) == [one.client.client_id]
        assert one.consumer.snapshot().rebalances == before
        assert [entry["client_id"] for entry in logs if entry["event"] == "group_held_elsewhere"] == [
            one.client.client_id
        ]


@pytest.mark.slow
async def test_a_local_member_does_not_start_where_a_driver_has_the_group(broker: EmbeddedBroker) -> None:
    """It pulls nothing, says why, and leaves; and the driver stays."""
    seen = Seen()
    async with driver(broker) as presence:
        watching = asyncio.create_task(presence.watch())
        async with local(broker, seen) as one:
            with pytest.raises(ExceptionGroup) as caught:
                await one.task
            assert caught.group_contains(
                GroupHeldElsewhereError, match=f"on engine: spark has it on .*{presence.client_id}"
            )
            snapshot = one.consumer.snapshot()
            assert snapshot.state == "failed"
            assert "GroupHeldElsewhereError: group reports is held elsewhere" in str(snapshot.failure)
            assert await members(broker) == [presence.client_id]
        assert seen.bodies == []
        assert broker.offsets(GROUP, "orders") == {}
        assert not watching.done()
        watching.cancel()


async def test_a_local_member_starts_once_the_driver_has_left(broker: EmbeddedBroker) -> None:
    seen = Seen()
    async with driver(broker):
        pass
    async with local(broker, seen) as one:
        await has_everything(one)


@pytest.mark.slow
@pytest.mark.parametrize("delay_seconds", [0.0, 0.005, 0.01, 0.02, 0.04])
async def test_of_two_that_start_at_once_one_has_the_group(broker: EmbeddedBroker, delay_seconds: float) -> None:
    """Whoever it is: never both, and never neither."""
    presence, seen = Presence(order_of(broker)), Seen()
    async with local(broker, seen) as one:
        await asyncio.sleep(delay_seconds)
        try:
            await presence.join()
        except GroupHeldElsewhereError:
            await has_everything(one)
            assert await members(broker) == [one.client.client_id]
        else:
            await asyncio.wait({one.task})
            assert seen.bodies == []
            assert await members(broker) == [presence.client_id]
            await presence.leave()


async def test_of_two_drivers_that_start_at_once_one_has_the_group(broker: EmbeddedBroker) -> None:
    both = [Presence(order_of(broker)) for _ in range(2)]
    results = await asyncio.gather(*(one.join() for one in both), return_exceptions=True)
    refused = [error for error in results if error is not None]
    assert len(refused) == 1
    assert isinstance(refused[0], GroupHeldElsewhereError)
    winner = both[results.index(None)]
    assert await members(broker) == [winner.client_id]
    await winner.leave()


class Stubborn:
    """A member of another client, which knows nothing of engines."""

    group = GROUP

    def __init__(self, like: Presence) -> None:
        self.consumer_data = like.consumer_data
        self.on_consumer_ids_changed = lambda: None


@pytest.mark.slow
async def test_a_driver_leaves_to_a_member_that_stays(broker: EmbeddedBroker) -> None:
    """As of the Java client: the driver bears with it for a time, and then says who has the group."""
    async with driver(broker) as presence, operator(broker) as (client, _):
        watching = asyncio.create_task(presence.watch())
        client.register(Stubborn(presence))  # type: ignore[arg-type]  # brokers ask it nothing
        await client.heartbeat.beat()
        with pytest.raises(GroupHeldElsewhereError, match="on engine: local, or of another client"):
            await watching


@pytest.mark.slow
async def test_a_local_member_that_runs_leaves_to_a_driver_that_stays(broker: EmbeddedBroker) -> None:
    """One that was cut off from the brokers while both started, say. What was handled is committed first."""
    seen = Seen()
    async with local(broker, seen) as one, operator(broker) as (client, address):
        await eventually(lambda: len(seen.bodies) == 8, "all are handled")
        async with stubborn_driver(broker) as presence:
            assert len(one.owned()) == 4, "a driver takes no queue"
            with pytest.raises(ExceptionGroup) as caught:
                await one.task
            assert caught.group_contains(GroupHeldElsewhereError)
            assert await get_consumer_list(client.remoting, address, GROUP) == [presence.client_id]
        assert broker.offsets(GROUP, "orders") == {0: 2, 1: 2, 2: 2, 3: 2}


@contextlib.asynccontextmanager
async def stubborn_driver(broker: EmbeddedBroker) -> AsyncIterator[ClientInstance]:
    """A client by a driver's id that does not look who is there."""
    client = ClientInstance(ClientOptions(nameservers=(broker.nameserver,), instance_name="spark-7#7"))
    running = asyncio.create_task(client.run())
    await client.routes.lookup("orders")
    client.register(Stubborn(Presence(order_of(broker))))  # type: ignore[arg-type]  # brokers ask it nothing
    await client.heartbeat.beat()
    try:
        yield client
    finally:
        client.stop()
        await running


async def test_it_is_in_the_group_again_after_the_broker_came_back(broker: EmbeddedBroker) -> None:
    async with driver(broker) as presence:
        watching = asyncio.create_task(presence.watch())
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)

        async def is_listed() -> bool:
            try:
                return await members(broker) == [presence.client_id]
            except RmqdError:
                return False

        await eventually(is_listed, "it is listed again", 10)
        assert not watching.done()
        watching.cancel()


async def test_where_nobody_tells_who_is_there_it_does_not_start(broker: EmbeddedBroker) -> None:
    presence = Presence(order_of(broker))
    await asyncio.to_thread(broker.stop)
    with pytest.raises(RmqdError, match=r"127\.0\.0\.1"):
        await presence.join()


async def test_without_topics_it_does_not_start(broker: EmbeddedBroker) -> None:
    broker.delete_topic("orders")
    with pytest.raises(RouteNotFoundError, match="no route for topic orders"):
        await Presence(order_of(broker)).join()


async def test_a_reset_that_a_broker_pushes_is_passed_on(broker: EmbeddedBroker) -> None:
    """As those of 4.x do."""
    heard: list[Mapping[MessageQueue, int]] = []
    presence = Presence(order_of(broker), on_reset=heard.append)
    await presence.join()
    broker.commit(GROUP, "orders", {0: 2, 1: 2, 2: 2, 3: 2})
    broker.change_settings(useServerSideResetOffset="false")
    async with operator(broker) as (client, address):
        await reset_offset(client.remoting, address, GROUP, "orders", 0)
    await eventually(lambda: bool(heard), "it hears of it")
    assert heard == [{queue("orders", number): 0 for number in range(4)}]
    await presence.leave()


async def test_a_large_reset_is_read_beside_the_loop_and_none_overtakes_it(broker: EmbeddedBroker) -> None:
    heard: list[Mapping[MessageQueue, int]] = []
    presence = Presence(order_of(broker), on_reset=heard.append)
    resets = [{queue("orders", number): 5 for number in range(count)} for count in (2000, 1)]
    asked = [asyncio.create_task(presence.on_request(pushed(reset))) for reset in resets]
    await asyncio.sleep(0)
    assert not heard, "read in the loop"
    await asyncio.gather(*asked)
    assert heard == resets


async def test_an_operator_who_asks_it_hears_that_it_is_spark(broker: EmbeddedBroker) -> None:
    async with driver(broker) as presence, operator(broker) as (client, address):
        info = await consumer_running_info(client.remoting, address, GROUP, presence.client_id)
        assert info.user_consumer_info["engine"] == "spark"
        assert {data.topic for data in info.subscription_set} == {"orders", "%RETRY%reports"}
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert info.mq_table[queue("orders", 1)].commit_offset == 7


async def test_leaving_without_having_joined_does_nothing(broker: EmbeddedBroker) -> None:
    await Presence(order_of(broker)).leave()
    assert await members(broker) == []


@pytest.mark.parametrize(
    ("where", "starts"),
    [("last_offset", {0: 2, 1: 2, 2: 2, 3: 2}), ("timestamp", {0: 0, 1: 0, 2: 0, 3: 0}), ("first_offset", {})],
)
async def test_a_new_group_is_founded_as_by_the_local_engine(
    broker: EmbeddedBroker, where: str, starts: Mapping[int, int]
) -> None:
    """In all queues, before the query asks where the group is; by first_offset it begins where later queues do."""
    await next_millisecond()
    presence = Presence(order_of(broker, where=where))
    await presence.join()
    try:
        await presence.found()
    finally:
        await presence.leave()
    assert broker.offsets(GROUP, "orders") == starts


async def test_a_group_that_the_other_engine_had_is_not_new(broker: EmbeddedBroker) -> None:
    """The topic has grown since: the query finds no offset there, and begins at the first message."""
    async with member(
        broker.nameserver, Seen(), group=GROUP, subscriptions=["orders"], consume_from_where="last_offset"
    ) as one:
        await eventually(lambda: len(one.owned()) == 4, "it has the queues")
    broker.create_topic("orders", 6)
    broker.send("orders", "later", queue_id=5)
    presence = Presence(order_of(broker))
    await presence.join()
    try:
        await presence.found()
    finally:
        await presence.leave()
    assert broker.offsets(GROUP, "orders") == {0: 2, 1: 2, 2: 2, 3: 2}
