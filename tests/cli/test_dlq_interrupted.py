"""`rmqd dlq purge` on a terminal, interrupted by Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from rmqd.codes import RequestCode
from rmqd.wire.bodies.cluster import ClusterInfo
from rmqd.wire.bodies.route import BrokerData
from rmqd.wire.bodies.stats import TopicOffset, TopicStatsTable
from tests.cli.command import TOP
from tests.client.peer import Peer, Reply
from tests.consumer.scripted_broker import BROKER, ScriptedBroker


@pytest.mark.process
async def test_a_purge_that_is_interrupted_says_what_was_done(tmp_path: Path) -> None:
    """On a line of its own, where the progress stood."""
    async with Peer() as peer:
        broker = ScriptedBroker(peer)
        (queue,) = broker.create_topic("%DLQ%mailer")
        await broker.store(queue, b"a", b"b", b"c")
        cluster = ClusterInfo({BROKER: BrokerData("DefaultCluster", BROKER, {0: peer.address})}, {})
        peer.on(RequestCode.GET_BROKER_CLUSTER_INFO, Reply(body=cluster.to_json()))
        stats = TopicStatsTable({queue: TopicOffset(0, 3)})
        peer.on(RequestCode.GET_TOPIC_STATS_INFO, Reply(body=stats.to_json()))
        peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, None)  # what comes after the letters are settled
        terminal, end = pty.openpty()
        options = ("--yes", "-n", peer.address, "--set", f"state_dir={tmp_path}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rmqd", "dlq", "purge", "mailer", *options,
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(TOP)}, stdout=asyncio.subprocess.DEVNULL, stderr=end,
        )  # fmt: skip
        os.close(end)
        try:
            await peer.received(RequestCode.UPDATE_CONSUMER_OFFSET)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 1
            told = os.read(terminal, 10_000).decode()
        finally:
            os.close(terminal)
    assert told == ("\r\033[Krmqd: interrupted; 3 of 3 settled; the same command goes on where this one was cut\r\n")
