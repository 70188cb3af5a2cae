"""The HTTP endpoint with hundreds of silent or slow clients.

The core of these tests is in tests/daemon/http/test_http.py.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from tests.daemon.daemon_process import daemon, write_config
from tests.nightly.daemon.http.test_limits import PROBE, UNREAD, connections, raw


@pytest.mark.process
async def test_the_daemon_answers_a_probe_despite_256_silent_clients(tmp_path: Path) -> None:
    """The daemon is a process with the real limit."""
    async with daemon(write_config(tmp_path, "mailer")) as running:
        address = (await running.event("daemon.started"))["http"]
        async with connections(address, 128), connections(address, 140, UNREAD):
            for _ in range(3):
                assert (await raw(address, PROBE)).startswith(b"HTTP/1.1 200")
        assert await running.event("http.connections_full")


PROBER = """
import sys, time, urllib.request
end, worst, probes = time.monotonic() + 8, 0.0, 0
while time.monotonic() < end:
    begin = time.monotonic()
    with urllib.request.urlopen(sys.argv[1], timeout=1) as answer:
        assert answer.status == 200
    worst, probes = max(worst, time.monotonic() - begin), probes + 1
    time.sleep(0.05)
print(probes, worst)
"""


@pytest.mark.process
@pytest.mark.slow
async def test_the_daemon_answers_probes_despite_300_clients_that_send_a_byte_a_second(tmp_path: Path) -> None:
    """A separate process probes with a timeout of 1 s. Clients whose connection was closed reconnect."""
    async with daemon(write_config(tmp_path, "mailer")) as running:
        address = (await running.event("daemon.started"))["http"]
        slow = [_connected(address) for _ in range(300)]
        prober = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROBER, f"http://{address}/livez", stdout=PIPE, stderr=PIPE
        )
        probed = asyncio.create_task(prober.communicate())
        while not probed.done():
            slow = [sock for sock in slow if _takes_a_byte(sock)]
            slow += [_connected(address) for _ in range(300 - len(slow))]
            await asyncio.wait({probed}, timeout=1)
        for sock in slow:
            sock.close()
        out, err = await probed
        assert prober.returncode == 0, err.decode()
        assert int(out.split()[0]) > 50, "the process probes all the time"
        assert await running.event("http.connections_full")


def _connected(address: str) -> socket.socket:
    host, port = address.split(":")
    sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    return sock


def _takes_a_byte(sock: socket.socket) -> bool:
    """Send one more byte of a request line. Closes the socket and returns False if the other end has closed it."""
    try:
        sock.send(b"a")
        is_open = sock.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        is_open = False
    if not is_open:
        sock.close()
    return is_open
