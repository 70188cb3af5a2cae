"""Notifications to systemd's socket.

The core of these tests is in tests/daemon/test_systemd.py.
"""

from __future__ import annotations

import os
import socket

from rmqd.daemon.systemd import ServiceManager
from tests.daemon.test_systemd import lines


def test_an_abstract_socket_is_notified() -> None:
    """An address that starts with @ is not a path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"rmqd-test-{os.getpid()}"
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).report_ready("up")
        assert lines(sock) == ["READY=1", "STATUS=up"]


def test_child_processes_do_not_inherit_systemds_variables() -> None:
    environment = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "HOME": "/root"}
    ServiceManager(environment)
    assert environment == {"HOME": "/root"}


def test_a_missing_socket_is_ignored() -> None:
    """The daemon may run longer than its service manager."""
    ServiceManager({"NOTIFY_SOCKET": "/nowhere/notify"}).report_ready("up")


def test_without_systemd_notifications_are_ignored() -> None:
    manager = ServiceManager({})
    manager.report_ready("up")
    assert manager.watchdog_seconds is None
