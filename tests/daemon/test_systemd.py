"""Notifications to systemd's socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rmqd.daemon.systemd import ServiceManager


@pytest.fixture
def manager_socket(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


def lines(sock: socket.socket) -> list[str]:
    """The lines of the next message."""
    return sock.recv(4096).decode().split("\n")


def test_start_reload_and_stop_are_notified(manager_socket: socket.socket) -> None:
    """A reload is notified with a timestamp, a stop with the time that it may take."""
    manager = ServiceManager({"NOTIFY_SOCKET": manager_socket.getsockname()})
    manager.report_ready("2 groups")
    assert lines(manager_socket) == ["READY=1", "STATUS=2 groups"]
    manager.report_reloading(12.5)
    assert lines(manager_socket) == ["RELOADING=1", "MONOTONIC_USEC=12500000", "STATUS=reloading"]
    manager.report_stopping(45)
    assert lines(manager_socket) == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=45000000", "STATUS=draining"]


def test_the_watchdog_of_another_process_is_ignored() -> None:
    """The other process may be a wrapper."""
    for pid, seconds in ((os.getpid(), 30.0), (1, None)):
        environment = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(pid)}
        assert ServiceManager(environment).watchdog_seconds == seconds


async def test_the_watchdog_is_fed_from_the_event_loop(manager_socket: socket.socket) -> None:
    """Notified repeatedly, at half the interval."""
    manager = ServiceManager({"NOTIFY_SOCKET": manager_socket.getsockname(), "WATCHDOG_USEC": "400000"})
    feeding = asyncio.create_task(manager.keep_watchdog_quiet())
    loop = asyncio.get_running_loop()
    manager_socket.setblocking(False)
    began = loop.time()
    for _ in range(3):
        assert await loop.sock_recv(manager_socket, 100) == b"WATCHDOG=1"
    assert loop.time() - began >= 0.4
    feeding.cancel()
    with suppress(asyncio.CancelledError):
        await feeding
