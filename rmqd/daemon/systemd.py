"""Notifications to systemd (sd_notify), if systemd runs this process. Also the daemon's checks of `state_dir`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import structlog

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.offsets.local_file_store import LOCK_FILE_NAME
from rmqd.errors import ConfigError
from rmqd.runtime.files import check_unlocked, make_folder

log = structlog.get_logger(__name__)

MICROSECONDS = 1_000_000


class ServiceManager:
    """Sends notifications to systemd's socket `$NOTIFY_SOCKET`. Without this variable, every method does nothing.

    The constructor removes systemd's variables from the environment, so that child processes do not notify systemd.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.pop("NOTIFY_SOCKET", "")
        self._failed = False
        watchdog_pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        interval = environment.pop("WATCHDOG_USEC", "")
        ours = watchdog_pid == str(os.getpid()) and interval.isdigit() and bool(self._address)
        self.watchdog_seconds: float | None = int(interval) / MICROSECONDS if ours and int(interval) > 0 else None

    def report_ready(self, status: str) -> None:
        """Report that the start, or a reload, is complete. `status` is one line for `systemctl status`."""
        self._send(f"READY=1\nSTATUS={status}")

    def report_reloading(self, monotonic_seconds: float) -> None:
        """Report that a reload begins. `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_seconds * MICROSECONDS)}\nSTATUS=reloading")

    def report_stopping(self, drain_seconds: float) -> None:
        """Report that the process is stopping, and extend the unit's stop timeout to `drain_seconds`."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(drain_seconds * MICROSECONDS)}\nSTATUS=draining")

    async def keep_watchdog_quiet(self) -> None:
        """Notify systemd's watchdog twice in each watchdog interval, until cancelled.

        If the event loop is blocked, no notification is sent, and systemd restarts the service.
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


def prepare_state_dir(config: RootConfig) -> None:
    """Create the offset folders of broadcasting groups, and check that they are writable. Raises ConfigError."""
    for directory, group in _folders(config).items():
        with _told_with_its_place(config, group, directory):
            make_folder(directory)
            probe = directory / f"probe.{os.getpid()}"
            probe.touch()
            probe.unlink()


def refuse_second_process(config: RootConfig) -> None:
    """Check that no other process locks the offset folders of broadcasting groups. Raises InUseError, ConfigError."""
    for directory, group in _folders(config).items():
        with _told_with_its_place(config, group, directory):
            check_unlocked(directory / LOCK_FILE_NAME)


def _folders(config: RootConfig) -> dict[Path, str]:
    """Return the offset folders of broadcasting groups, one for each cluster, each with one group that needs it."""
    folders: dict[Path, str] = {}
    for name, group in config.groups.items():
        if group.message_model == "broadcasting":
            folders.setdefault(Path(config.state_dir_of_group(name)) / "offsets", name)
    return folders


@contextlib.contextmanager
def _told_with_its_place(config: RootConfig, group: str, directory: Path) -> Iterator[None]:
    """Convert an OSError of the `with` block to a ConfigError of the group. Ignore the errors of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # the disk is full: groups can continue at their stored offsets, and store new offsets later
        text = (
            f"{directory}, the folder of broadcasting offsets, cannot be written: {error.strerror or error}; "
            "set a writable state_dir"
        )
        raise ConfigError([config.groups[group].problem(group, ("message_model",), text)]) from error
