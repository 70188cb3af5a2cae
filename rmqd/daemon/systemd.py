"""Reports the state of this process to systemd (sd_notify), if systemd runs it and requests that."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping

import structlog

log = structlog.get_logger(__name__)

MICROSECONDS = 1_000_000


class ServiceManager:
    """The datagram socket named by `$NOTIFY_SOCKET`. Without one, every method does nothing.

    The variables are removed from the environment, so that child processes do not report as this one.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.pop("NOTIFY_SOCKET", "")
        self._failed = False
        watchdog_pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        interval = environment.pop("WATCHDOG_USEC", "")
        ours = watchdog_pid == str(os.getpid()) and interval.isdigit() and bool(self._address)
        self.watchdog_seconds: float | None = int(interval) / MICROSECONDS if ours and int(interval) > 0 else None

    def ready(self, status: str) -> None:
        """Report that the start, or a reload, is complete. `status` is one line for `systemctl status`."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self, monotonic_seconds: float) -> None:
        """Report that a reload begins. `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_seconds * MICROSECONDS)}\nSTATUS=reloading")

    def stopping(self, drain_seconds: float) -> None:
        """Report that the process is stopping, and extend the unit's stop timeout to `drain_seconds`."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(drain_seconds * MICROSECONDS)}\nSTATUS=draining")

    async def keep_watchdog_quiet(self) -> None:
        """Report to the watchdog at half of its interval, from the event loop, until cancelled.

        A blocked loop reports nothing, and systemd restarts the service.
        """
        if self.watchdog_seconds is None:
            return
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 2)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(message.encode(), address)
        except OSError as error:
            if not self._failed:
                log.warning("service_manager.unreachable", address=self._address, error=str(error))
            self._failed = True
        else:
            self._failed = False
