"""A driver on Spark and members of the local engine over an embedded broker: one engine at a time runs a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest
from structlog.testing import capture_logs

from rmqd.client.api.group_requests import consumer_running_info, get_consumer_list
from rmqd.client.client_options import ClientOptions, is_spark_client_id
from rmqd.client.instance import ClientInstance
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.rebalance import ownership
from rmqd.errors import GroupHeldElsewhereError
from rmqd.spark.engine import driver_membership as module
from rmqd.spark.engine.driver_membership import DriverMembership
from rmqd.spark.session.group_spec import GroupSpec
from rmqd.wire.bodies.group_bodies import ProcessQueueInfo
from tests.clock import next_millisecond
from tests.consumer.members import Member, member
from tests.seen import Seen
from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.waiting import eventually

GROUP = "reports"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all waits to a tenth."""
    for name in ("STARTING_SENIOR_WAIT_SECONDS", "JUNIOR_WAIT_SECONDS", "SENIOR_WAIT_SECONDS"):
        monkeypatch.setattr(ownership, name, getattr(ownership, name) / 10)
    monkeypatch.setattr(module, "CONFLICT_POLL_SECONDS", module.CONFLICT_POLL_SECONDS / 10)
    monkeypatch.setattr("rmqd.consumer.rebalance.rebalance.UNBALANCED_PASS_INTERVAL_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def topic(broker: EmbeddedBroker) -> None:
    broker.fill("orders", 4, 2)


def order_of(broker: EmbeddedBroker, *, where: str = "last_offset", **client: object) -> GroupSpec:
    group = {"engine": "spark", "subscriptions": {"orders": "*"}, "handler": {"plugin": "noop"}}
    group["consume_from_where"] = where
    values = {"nameserver": broker.nameserver, "client": client, "groups": {GROUP: group}}
    return GroupSpec(GROUP, RootConfig.model_validate(values))


@contextlib.asynccontextmanager
async def driver(broker: EmbeddedBroker) -> AsyncIterator[DriverMembership]:
    """The membership of a driver that has joined, and leaves at the end."""
    membership = DriverMembership(
        order_of(broker), held=lambda: {queue("orders", 1): ProcessQueueInfo(commit_offset=7)}
    )
    await membership.join()
    try:
        yield membership
    finally:
        await membership.leave()


@contextlib.asynccontextmanager
async def local(broker: EmbeddedBroker, seen: Seen) -> AsyncIterator[Member]:
    """A member of the local engine, which may end with GroupHeldElsewhereError."""
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
    """A client for queries only, and the broker's address."""
    client = ClientInstance(ClientOptions(nameservers=(broker.nameserver,)))
    try:
        await client.routes.lookup("orders")
        yield client, str(client.routes.address("broker-a"))
    finally:
        await client.close()


async def members(broker: EmbeddedBroker) -> list[str]:
    """The client ids in the group, as the broker reports them."""
    async with operator(broker) as (client, address):
        return await get_consumer_list(client.remoting, address, GROUP)


async def has_everything(one: Member) -> None:
    await eventually(lambda: len(one.owned()) == 4, "the member has all queues")


async def test_a_driver_is_in_the_group_until_it_leaves(broker: EmbeddedBroker) -> None:
    async with driver(broker) as membership:
        assert await members(broker) == [membership.client_id]
        assert is_spark_client_id(membership.client_id)
    assert await members(broker) == []


async def test_a_driver_does_not_start_while_a_local_member_consumes(broker: EmbeddedBroker) -> None:
    """The member is not affected."""
    async with local(broker, Seen()) as one:
        await has_everything(one)
        before = one.consumer.snapshot().rebalances
        with capture_logs() as logs, pytest.raises(GroupHeldElsewhereError) as caught:
            await DriverMembership(order_of(broker)).join()
        assert (caught.value.engine, caught.value.client_id) == ("local", one.client.client_id)
        assert await members(broker) == [one.client.client_id]
        assert one.consumer.snapshot().rebalances == before
        assert [entry["client_id"] for entry in logs if entry["event"] == "group_held_elsewhere"] == [
            one.client.client_id
        ]


async def test_a_local_member_does_not_start_while_a_driver_has_the_group(broker: EmbeddedBroker) -> None:
    """It pulls nothing, reports the reason, and leaves. The driver stays."""
    seen = Seen()
    async with driver(broker) as membership:
        watching = asyncio.create_task(membership.watch_members())
        async with local(broker, seen) as one:
            with pytest.raises(ExceptionGroup) as caught:
                await one.task
            assert caught.group_contains(
                GroupHeldElsewhereError, match=rf"\({membership.client_id}\), with engine: spark"
            )
            snapshot = one.consumer.snapshot()
            assert snapshot.state == "failed"
            assert "GroupHeldElsewhereError: group reports runs elsewhere" in str(snapshot.failure)
            assert await members(broker) == [membership.client_id]
        assert seen.bodies == []
        assert broker.offsets(GROUP, "orders") == {}
        assert not watching.done()
        watching.cancel()


async def test_only_one_of_two_starting_drivers_gets_the_group(broker: EmbeddedBroker) -> None:
    both = [DriverMembership(order_of(broker)) for _ in range(2)]
    results = await asyncio.gather(*(one.join() for one in both), return_exceptions=True)
    refused = [error for error in results if error is not None]
    assert len(refused) == 1
    assert isinstance(refused[0], GroupHeldElsewhereError)
    winner = both[results.index(None)]
    assert await members(broker) == [winner.client_id]
    await winner.leave()


async def test_the_running_info_of_a_driver_names_spark(broker: EmbeddedBroker) -> None:
    async with driver(broker) as membership, operator(broker) as (client, address):
        info = await consumer_running_info(client.remoting, address, GROUP, membership.client_id)
        assert info.user_consumer_info["engine"] == "spark"
        assert {data.topic for data in info.subscription_set} == {"orders", "%RETRY%reports"}
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert info.mq_table[queue("orders", 1)].commit_offset == 7


@pytest.mark.parametrize(
    ("where", "starts"),
    [("last_offset", {0: 2, 1: 2, 2: 2, 3: 2}), ("timestamp", {0: 0, 1: 0, 2: 0, 3: 0}), ("first_offset", {})],
)
async def test_a_new_group_gets_the_same_start_offsets_as_on_the_local_engine(
    broker: EmbeddedBroker, where: str, starts: Mapping[int, int]
) -> None:
    """With first_offset none are stored, because queues without an offset start at their first message."""
    await next_millisecond()
    membership = DriverMembership(order_of(broker, where=where))
    await membership.join()
    try:
        await membership.store_start_offsets()
    finally:
        await membership.leave()
    assert broker.offsets(GROUP, "orders") == starts
