"""What most tests of the embedded broker begin with: one of their own, by a clock of their own, and a raw client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.runtime.clock import Clock, SystemClock
from tests.broker.peer import Peer, connected


@pytest.fixture
def clock() -> Clock:
    """The machine's; tests of what comes later have one that they turn."""
    return SystemClock()


@pytest.fixture
async def embedded(clock: Clock) -> AsyncIterator[EmbeddedRocketMQ]:
    """A name server and a broker in this loop, with a topic T of 4 queues."""
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": 4}), clock) as running:
        yield running


@pytest.fixture
async def peer(embedded: EmbeddedRocketMQ) -> AsyncIterator[Peer]:
    """A connection to the broker."""
    async with connected(embedded.broker.address) as connection:
        yield connection
