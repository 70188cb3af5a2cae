"""`rmqd dlq purge` on a terminal, interrupted by Ctrl-C: while it works, and at its question."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rmqd.codes import RequestCode
from rmqd.errors import ExitCode
from rmqd.wire.bodies.route_data import BrokerData, ClusterInfo
from rmqd.wire.bodies.stats_bodies import TopicOffset, TopicStatsTable
from tests.client.peer import Peer, Reply
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.nightly.demo.terminal import Terminal, on_terminal

pytestmark = pytest.mark.process


@contextlib.asynccontextmanager
async def three_letters() -> AsyncIterator[Peer]:
    """A broker with three dead letters of group mailer. It does not answer offset commits."""
    async with Peer() as peer:
        broker = ScriptedBroker(peer)
        (queue,) = broker.create_topic("%DLQ%mailer")
        await broker.store(queue, b"a", b"b", b"c")
        cluster = ClusterInfo({BROKER: BrokerData("DefaultCluster", BROKER, {0: peer.address})}, {})
        peer.on(RequestCode.GET_BROKER_CLUSTER_INFO, Reply(body=cluster.to_json()))
        stats = TopicStatsTable({queue: TopicOffset(0, 3)})
        peer.on(RequestCode.GET_TOPIC_STATS_INFO, Reply(body=stats.to_json()))
        peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, None)  # the request after the letters are settled
        yield peer


@contextlib.contextmanager
def purge(peer: Peer, state_dir: Path, *more: str) -> Iterator[Terminal]:
    """The command on a terminal."""
    options = ("-n", peer.address, "--set", f"state_dir={state_dir}", *more)
    with on_terminal([sys.executable, "-m", "rmqd", "dlq", "purge", "mailer", *options]) as terminal:
        yield terminal


def interrupted(terminal: Terminal) -> int:
    """Press Ctrl-C until the program ends.

    If one arrives just before Python reads a line, Python notices it only with the next one.
    """
    for _ in range(5):
        terminal.press("\x03")
        with contextlib.suppress(subprocess.TimeoutExpired):
            return terminal.wait(5)
    raise AssertionError(f"it goes on: {terminal.text}")


def refused(terminal: Terminal) -> int:
    """Say no."""
    terminal.press("n\n")
    return terminal.wait()


async def test_an_interrupted_purge_reports_its_progress(tmp_path: Path) -> None:
    """The report replaces the line of the progress."""
    async with three_letters() as peer:
        with purge(peer, tmp_path, "--yes") as terminal:
            await peer.received(RequestCode.UPDATE_CONSUMER_OFFSET)
            terminal.press("\x03")
            assert await asyncio.to_thread(terminal.wait) == ExitCode.INTERRUPTED
    told = "rmqd: interrupted; 3 of 3 settled; run the same command to continue\r\n"
    assert terminal.text.endswith(f"\r{told}")


async def test_ctrl_c_at_the_question_changes_nothing(tmp_path: Path) -> None:
    """The answer no changes nothing either, but has another exit code."""
    async with three_letters() as peer:
        for answer, code in ((interrupted, ExitCode.INTERRUPTED), (refused, ExitCode.FAILURE)):
            with purge(peer, tmp_path) as terminal:
                await asyncio.to_thread(terminal.wait_for, r"Do it\? \[y/N\]: ")  # printed when it reads the answer
                assert await asyncio.to_thread(answer, terminal) == code
            assert terminal.text.endswith("\r\nrmqd: nothing was changed\r\n")
        assert not peer.got(RequestCode.UPDATE_CONSUMER_OFFSET)
