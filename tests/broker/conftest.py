"""Fixtures of the embedded broker: a broker and a clock for each test, and a raw client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.runtime.clock import Clock, SystemClock
from tests.broker.peer import Peer, connected


@pytest.fixture
def clock() -> Clock:
    """Return the machine's clock. Tests of delays override this fixture with a clock that they advance."""
    return SystemClock()


@pytest.fixture
async def embedded(clock: Clock) -> AsyncIterator[EmbeddedRocketMQ]:
    """Run a name server and a broker in this loop, with a topic T of 4 queues."""
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": 4}), clock) as running:
        yield running


@pytest.fixture
async def peer(embedded: EmbeddedRocketMQ) -> AsyncIterator[Peer]:
    """Open a connection to the broker."""
    async with connected(embedded.broker.address) as connection:
        yield connection
