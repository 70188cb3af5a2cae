"""What systemd is told about this process (sd_notify), where it runs us and asked for it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping

import structlog

log = structlog.get_logger(__name__)

MICROSECONDS = 1_000_000


class ServiceManager:
    """The datagram socket named by `$NOTIFY_SOCKET`; every method does nothing where there is none.

    Takes the variables out of the environment, so that child processes do not speak in our name.
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
        """The start, or a reload, is complete. `status` is one line for `systemctl status`."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self, monotonic_seconds: float) -> None:
        """A reload begins; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_seconds * MICROSECONDS)}\nSTATUS=reloading")

    def stopping(self, drain_seconds: float) -> None:
        """The end begins and takes up to `drain_seconds`, for which the unit's stop timeout is extended."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(drain_seconds * MICROSECONDS)}\nSTATUS=draining")

    async def keep_watchdog_quiet(self) -> None:
        """Report life at half the watchdog's interval, from the event loop itself, until cancelled.

        A loop that is blocked misses the report, and systemd restarts the service.
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
