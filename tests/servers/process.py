"""A server process that tests start, kill and restart, always with the same port and directory."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.waiting import Patience

END_SECONDS = 30.0
POLL_SECONDS = 0.02


class ServerMissing(Exception):
    """The server's program is not installed. The text names Debian's package."""


class ServerProcess(ABC):
    """One server. As a context manager it runs until the end of the block, and leaves nothing behind."""

    ready_seconds = 30.0
    """How long it may take until it answers."""

    def __init__(self, name: str, users: Sequence[str] = ("nobody",), directory: Path | None = None) -> None:
        """If we are root, the server runs as the first of these users that exists, otherwise as the current user.

        Some servers refuse to run as root. A given `directory` is kept for the next server there.
        """
        self._keeps = directory is not None
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix=f"rmqd-{name}-"))
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.working_directory = self.directory
        self.port = free_port()
        self._log = self.directory / "log"
        self._user: pwd.struct_passwd | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            known = {entry.pw_name: entry for entry in pwd.getpwall()}
            self._user = next((known[user] for user in users if user in known), None)
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the server responds."""

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None, "the server runs"
        return self._process.pid

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Prepare the first start."""

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server, and wait until it responds. A process that ends at once is started again for a while.

        A killed process may occupy the port or the memory for a moment.
        """
        patience = Patience(self.ready_seconds)
        while not patience.is_over():
            if self._process is None or self._process.poll() is not None:
                self._process = self._popen(self.command())
            if self.is_ready():
                return
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"{self.command()[0]} does not answer:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Kill the server with SIGKILL, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server with a signal, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait(END_SECONDS)
            self._process = None

    def restart(self) -> None:
        """Kill the server, and start it again with its data on the disk."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Stop the server, because a killed one leaves shared memory behind, and remove its own directory."""
        try:
            self.stop()
        finally:
            self.kill()
        if not self._keeps:
            shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, command: Sequence[str | Path]) -> None:
        """Run a program of the server's to its end, as the server's user. Raises AssertionError with its output."""
        process = self._popen(command)
        assert process.wait() == 0, f"{command[0]} failed:\n{self._log.read_text()[-3000:]}"

    def _popen(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.working_directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user and self._user.pw_uid,
                group=self._user and self._user.pw_gid,
                extra_groups=self._user and [],
                start_new_session=True,  # Ctrl-C should stop the tests, not the server
            )


def find_program(name: str, package: str, *folders: Path) -> Path:
    """The path of a program, also in folders outside of PATH. Raises ServerMissing."""
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    if found is None:
        raise ServerMissing(f"no {name}: apt-get install {package}")
    return Path(found)


def free_port() -> int:
    """A port that is free now on the loopback address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
