"""A driver on Spark and members of the local engine over an embedded broker: only one engine has a group at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest

from rmqd.client.api.admin_requests import reset_offset
from rmqd.client.api.group_requests import get_consumer_list
from rmqd.client.client_options import ClientOptions, is_spark_client_id
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode
from rmqd.consumer.rebalance import ownership
from rmqd.errors import GroupHeldElsewhereError, RmqdError, RouteNotFoundError
from rmqd.spark.engine import driver_membership as module
from rmqd.spark.engine.driver_membership import DriverMembership
from rmqd.wire.bodies.group_bodies import ResetOffsetBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.members import member
from tests.seen import Seen
from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.spark.test_presence import (
    GROUP,
    driver,
    has_everything,
    local,
    members,
    operator,
    order_of,
)
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all waits ten times shorter."""
    for name in ("STARTING_SENIOR_WAIT_SECONDS", "JUNIOR_WAIT_SECONDS", "SENIOR_WAIT_SECONDS"):
        monkeypatch.setattr(ownership, name, getattr(ownership, name) / 10)
    monkeypatch.setattr(module, "CONFLICT_POLL_SECONDS", module.CONFLICT_POLL_SECONDS / 10)
    monkeypatch.setattr("rmqd.consumer.rebalance.rebalance.UNBALANCED_PASS_INTERVAL_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def topic(broker: EmbeddedBroker) -> None:
    broker.fill("orders", 4, 2)


def pushed(offsets: dict[MessageQueue, int]) -> RemotingCommand:
    """A reset as a broker pushes it."""
    fields = {"topic": "orders", "group": GROUP, "timestamp": "0", "isForce": "true"}
    body = ResetOffsetBody(offsets).to_json()
    return RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext_fields=fields, body=body)


async def test_the_client_id_is_that_of_a_spark_driver_for_any_instance_name(broker: EmbeddedBroker) -> None:
    """Two drivers with the same configuration have different ids."""
    ids = [
        DriverMembership(order_of(broker, instance_name=name)).client_id for name in ("DEFAULT", "room@one", "room@one")
    ]
    assert all(map(is_spark_client_id, ids))
    assert len(set(ids)) == 3
    assert "spark-room@one-" in ids[1]


async def test_a_local_member_starts_after_the_driver_has_left(broker: EmbeddedBroker) -> None:
    seen = Seen()
    async with driver(broker):
        pass
    async with local(broker, seen) as one:
        await has_everything(one)


@pytest.mark.slow
@pytest.mark.parametrize("delay_seconds", [0.0, 0.005, 0.01, 0.02, 0.04])
async def test_if_a_driver_and_a_member_start_at_once_one_of_them_has_the_group(
    broker: EmbeddedBroker, delay_seconds: float
) -> None:
    """Both or neither would be an error."""
    membership, seen = DriverMembership(order_of(broker)), Seen()
    async with local(broker, seen) as one:
        await asyncio.sleep(delay_seconds)
        try:
            await membership.join()
        except GroupHeldElsewhereError:
            await has_everything(one)
            assert await members(broker) == [one.client.client_id]
        else:
            await asyncio.wait({one.task})
            assert seen.bodies == []
            assert await members(broker) == [membership.client_id]
            await membership.leave()


class Stubborn:
    """A member of another client, which does not know engines."""

    group = GROUP

    def __init__(self, like: DriverMembership) -> None:
        self.consumer_data = like.consumer_data
        self.on_consumer_ids_changed = lambda: None


@pytest.mark.slow
async def test_a_driver_leaves_the_group_to_a_member_that_stays(broker: EmbeddedBroker) -> None:
    """The driver tolerates a member of a Java client for a while, and then reports which member has the group."""
    async with driver(broker) as membership, operator(broker) as (client, _):
        watching = asyncio.create_task(membership.watch_members())
        client.register(Stubborn(membership))  # type: ignore[arg-type]  # it receives no requests
        await client.heartbeat.send_heartbeats()
        with pytest.raises(GroupHeldElsewhereError, match="with engine: local, or with another client"):
            await watching


@pytest.mark.slow
async def test_a_running_local_member_leaves_the_group_to_a_driver_that_stays(broker: EmbeddedBroker) -> None:
    """It may have been cut off from the brokers while both started. Handled messages are committed first."""
    seen = Seen()
    async with local(broker, seen) as one, operator(broker) as (client, address):
        await eventually(lambda: len(seen.bodies) == 8, "all are handled")
        async with stubborn_driver(broker) as membership:
            assert len(one.owned()) == 4, "a driver takes no queue"
            with pytest.raises(ExceptionGroup) as caught:
                await one.task
            assert caught.group_contains(GroupHeldElsewhereError)
            assert await get_consumer_list(client.remoting, address, GROUP) == [membership.client_id]
        assert broker.offsets(GROUP, "orders") == {0: 2, 1: 2, 2: 2, 3: 2}


@contextlib.asynccontextmanager
async def stubborn_driver(broker: EmbeddedBroker) -> AsyncIterator[ClientInstance]:
    """A client with a driver's id that does not check for other members."""
    client = ClientInstance(ClientOptions(nameservers=(broker.nameserver,), instance_name="spark-7#7"))
    running = asyncio.create_task(client.run())
    await client.routes.lookup("orders")
    client.register(Stubborn(DriverMembership(order_of(broker))))  # type: ignore[arg-type]  # it receives no requests
    await client.heartbeat.send_heartbeats()
    try:
        yield client
    finally:
        client.stop()
        await running


async def test_the_driver_joins_again_after_a_broker_restart(broker: EmbeddedBroker) -> None:
    async with driver(broker) as membership:
        watching = asyncio.create_task(membership.watch_members())
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)

        async def is_listed() -> bool:
            try:
                return await members(broker) == [membership.client_id]
            except RmqdError:
                return False

        await eventually(is_listed, "it is listed again", 10)
        assert not watching.done()
        watching.cancel()


async def test_the_driver_does_not_start_if_no_broker_lists_the_members(broker: EmbeddedBroker) -> None:
    membership = DriverMembership(order_of(broker))
    await asyncio.to_thread(broker.stop)
    with pytest.raises(RmqdError, match=r"127\.0\.0\.1"):
        await membership.join()


async def test_the_driver_does_not_start_without_topics(broker: EmbeddedBroker) -> None:
    broker.delete_topic("orders")
    with pytest.raises(RouteNotFoundError, match="no route for topic orders"):
        await DriverMembership(order_of(broker)).join()


async def test_a_pushed_reset_is_passed_on(broker: EmbeddedBroker) -> None:
    """Brokers of 4.x push resets."""
    heard: list[Mapping[MessageQueue, int]] = []
    membership = DriverMembership(order_of(broker), on_reset=heard.append)
    await membership.join()
    broker.commit(GROUP, "orders", {0: 2, 1: 2, 2: 2, 3: 2})
    broker.change_settings(useServerSideResetOffset="false")
    async with operator(broker) as (client, address):
        await reset_offset(client.remoting, address, GROUP, "orders", 0)
    await eventually(lambda: bool(heard), "the reset is passed on")
    assert heard == [{queue("orders", number): 0 for number in range(4)}]
    await membership.leave()


async def test_a_large_reset_is_decoded_outside_the_loop_and_keeps_its_order(broker: EmbeddedBroker) -> None:
    heard: list[Mapping[MessageQueue, int]] = []
    membership = DriverMembership(order_of(broker), on_reset=heard.append)
    resets = [{queue("orders", number): 5 for number in range(count)} for count in (2000, 1)]
    asked = [asyncio.create_task(membership.on_request(pushed(reset))) for reset in resets]
    await asyncio.sleep(0)
    assert not heard, "not decoded in the loop"
    await asyncio.gather(*asked)
    assert heard == resets


async def test_leave_without_join_does_nothing(broker: EmbeddedBroker) -> None:
    await DriverMembership(order_of(broker)).leave()
    assert await members(broker) == []


async def test_a_group_that_the_other_engine_had_is_not_new(broker: EmbeddedBroker) -> None:
    """The topic has grown since. The query finds no offset for the new queue, and starts at its first message."""
    async with member(
        broker.nameserver, Seen(), group=GROUP, subscriptions=["orders"], consume_from_where="last_offset"
    ) as one:
        await eventually(lambda: len(one.owned()) == 4, "the member has the queues")
    broker.create_topic("orders", 6)
    broker.send("orders", "later", queue_id=5)
    membership = DriverMembership(order_of(broker))
    await membership.join()
    try:
        await membership.store_start_offsets()
    finally:
        await membership.leave()
    assert broker.offsets(GROUP, "orders") == {0: 2, 1: 2, 2: 2, 3: 2}
