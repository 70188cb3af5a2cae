"""Tests of the engine run on uvloop, as the daemon does, and fail if they leave a task behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from rmqd.wire.message_queue import MessageQueue
from tests.client.conftest import clock, flowing, no_task_left
from tests.client.peer import Peer
from tests.consumer.groups import TOPIC
from tests.consumer.pool import pool
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.seen import Seen

__all__ = ["clock", "flowing", "no_task_left", "pool"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that rmqd runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """A name server and broker on a free port, without topics."""
    async with Peer() as peer:
        yield ScriptedBroker(peer)


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    """A name server, and masters a and b."""
    async with Peer() as name_server, Peer() as a, Peer() as b:
        yield Two(name_server, ScriptedBroker(a, "a"), ScriptedBroker(b, "b"))


@pytest.fixture
def queue(broker: ScriptedBroker) -> MessageQueue:
    """The only queue of the topic."""
    return broker.create_topic(TOPIC)[0]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses after errors, which are as long as Java's."""
    monkeypatch.setattr("rmqd.consumer.pull.pulled_queue.FAILED_PULL_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.pull.pull_request.FAILED_PULL_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.pull.offset_moves.SUSPECT_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.pull.pulled_queue.PROBE_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.pull.pulled_queue.RECHECK_INTERVAL_SECONDS", 0.05)


@pytest.fixture
def unpaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between rebalance passes and between route refreshes; Java pauses for one second.

    Do not use it with a flowing clock: its members would do nothing else.
    """
    monkeypatch.setattr("rmqd.consumer.rebalance.rebalance.MIN_PASS_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr("rmqd.consumer.rebalance.rebalance.UNBALANCED_PASS_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr("rmqd.client.routing.route_table.REFRESH_GAP_SECONDS", 0.02)
    monkeypatch.setattr("rmqd.client.routing.route_table.UNKNOWN_TOPIC_FIRST_SECONDS", 0.02)


@pytest.fixture
def seen() -> Seen:
    """A handler that records its messages."""
    return Seen()
