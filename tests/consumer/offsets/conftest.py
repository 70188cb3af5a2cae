"""A member that owns a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.offsets.owner import Owner
from tests.consumer.scripted_broker import ScriptedBroker


@pytest.fixture
async def client(broker: ScriptedBroker, clock: ManualClock) -> AsyncIterator[ClientInstance]:
    """A client that is not started, so it runs no background tasks."""
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)), clock=clock)
    yield client
    await client.remoting.close()


@pytest.fixture
async def owner(broker: ScriptedBroker, queue: MessageQueue, client: ClientInstance, clock: ManualClock) -> Owner:
    await client.routes.lookup(TOPIC)
    broker.offsets[GROUP, queue] = 4
    store = RemoteBrokerOffsetStore(client, GROUP, clock)
    store.begin_ownership(queue, await store.read(queue))
    return Owner(broker, queue, client, clock, store)
