"""mqadmin commands in one JVM: a command takes about 50 ms, not the seconds of a JVM start."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rocketmq import programs, release, settings
from tests.rocketmq.errors import ClusterError

# mqadmin ends with status 0 when a command fails, so the output must show the failure
ADMIN_FAILED = re.compile(
    r"^(?:\[error\]|\S*Exception\b|.*SubCommandException|usage: mqadmin|.*doesn.t exist|The sub command .* not exist)",
    re.MULTILINE,
)


class AdminShell:
    """A running `java/AdminShell.java`, which may write to the directory; its `mqadmin` works with any cluster.

    `home` is the directory of keys and settings, for a cluster that requires them.
    """

    def __init__(
        self, directory: Path, version: str = release.DEFAULT, *, home: Path | None = None, tls: Sequence[str] = ()
    ) -> None:
        logback = directory / "mqadmin-logback.xml"
        logback.write_text(settings.LOGBACK)  # to a file, because log lines must not be in the output of commands
        options = [
            *tls,
            f"-Drmq.logback.configurationFile={logback}",
            f"-Drmqd.log={directory / 'mqadmin.log'}",
            f"-Duser.home={directory}",
            f"-Drocketmq.home.dir={home or directory}",
        ]
        command = programs.command("AdminShell", options, "256m", version)
        self._errors = tempfile.TemporaryFile("w+", dir=directory)  # noqa: SIM115 - closed by close
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=directory
        )
        if self._line() != "started":
            raise ClusterError(f"mqadmin's shell did not start:\n{self._said()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def mqadmin(self, nameserver: str, command: str, *arguments: str, check: bool = True) -> str:
        """Return the output of a command. Raises ClusterError if the output shows a failure."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = "\t".join((command, "-n", nameserver, *arguments))
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        size = self._line()
        if not size:
            raise ClusterError(f"mqadmin {command} ended the JVM:\n{self._said()}")
        printed = self._process.stdout.read(int(size)).decode()
        if check and ADMIN_FAILED.search(printed):
            raise ClusterError(f"mqadmin {command} {' '.join(arguments)} failed:\n{printed}")
        return printed

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().rstrip("\n")

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()
