"""`rmqd broker`: the embedded RocketMQ as a process. Nightly tests run it in the test's process, with its options."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.client.api.send_requests import SendResult
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from tests.cli.command import TOP
from tests.cli.in_process import rmqd


def send(nameserver: str, topic: str, count: int = 1) -> list[SendResult]:
    """Send some messages, and return the queue and offset of each."""

    async def all_of_them() -> list[SendResult]:
        client = ClientInstance(ClientOptions(nameservers=(nameserver,)))
        try:
            return [await client.producer.send(OutgoingMessage(topic, b"x")) for _ in range(count)]
        finally:
            await client.close()

    return asyncio.run(all_of_them())


@contextlib.contextmanager
def program(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker process, and the name server's address from its first line. Killed at the end if it still runs."""
    command = [sys.executable, "-m", "rmqd", "broker", "--listen", "127.0.0.1:0", *map(str, arguments)]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("nameserver: "), process.stderr and process.stderr.read()
            yield process, first.removeprefix("nameserver: ").rstrip("\n")
        finally:
            process.kill()


@pytest.mark.process
def test_the_broker_prints_a_hint_survives_kill_9_and_stops_on_sigterm(tmp_path: Path) -> None:
    """The folder is created, and an existing topic keeps its number of queues."""
    folder = tmp_path / "to" / "be" / "made"
    with program("--data-dir", folder, "--topic", "shop:1") as (process, nameserver):
        assert process.stdout is not None
        broker, hint = process.stdout.readline(), process.stdout.readline()
        assert re.fullmatch(r"127\.0\.0\.1:\d+", nameserver)
        assert re.match(rf"broker: broker-a at 127\.0\.0\.1:\d+; messages are kept in {re.escape(str(folder))}", broker)
        ended = rmqd(*hint.removeprefix("try: rmqd ").replace("'", "").split())
        assert ended.code == 0, ended.err
        assert "  shop  broker-a  queue 0  offset 0" in ended.out
        process.kill()
        process.wait()
    with program("--data-dir", folder, "--topic", "shop:7") as (process, nameserver):
        places = [(result.queue.queue_id, result.queue_offset) for result in send(nameserver, "shop", 2)]
        assert places == [(0, 1), (0, 2)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
