"""What systemd hears on its socket.

The core of these tests is in tests/daemon/test_systemd.py.
"""

from __future__ import annotations

import os
import socket

from rmqd.daemon.systemd import ServiceManager
from tests.daemon.test_systemd import lines


def test_an_abstract_socket() -> None:
    """An address that starts with @ is in no file system."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"rmqd-test-{os.getpid()}"
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready("up")
        assert lines(sock) == ["READY=1", "STATUS=up"]


def test_children_do_not_inherit_the_right_to_speak() -> None:
    """The variables leave the environment."""
    environment = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "HOME": "/root"}
    ServiceManager(environment)
    assert environment == {"HOME": "/root"}


def test_a_socket_that_is_gone_is_no_failure() -> None:
    """The daemon outlives its manager."""
    ServiceManager({"NOTIFY_SOCKET": "/nowhere/notify"}).ready("up")


def test_without_systemd_nothing_happens() -> None:
    """No socket, no watchdog, no error."""
    manager = ServiceManager({})
    manager.ready("up")
    assert manager.watchdog_seconds is None
