"""A program on a pseudo terminal, as for a person: its output, and the keys that are pressed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")
TOP = Path(__file__).parents[3]
_ON_STDIN = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """The master side of a pseudo terminal. Created by `on_terminal`."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.written = ""
        """The whole output, with escape sequences."""
        self._master = master
        self._process = process

    @property
    def text(self) -> str:
        """The whole output, without escape sequences."""
        return ESCAPES.sub("", self.written)

    def press(self, key: str) -> None:
        """Press a key: "\\x03" is Ctrl-C, which the terminal turns into a signal."""
        os.write(self._master, key.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the terminal's size. The kernel notifies the program."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def close(self) -> None:
        """Close the terminal, as when its window is closed."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def wait_for(self, pattern: str, timeout_seconds: float = 30) -> re.Match[str]:
        """Wait until the text matches. After `timeout_seconds` raises AssertionError with the end of the text."""
        deadline = time.monotonic() + timeout_seconds
        while (match := re.search(pattern, self.text)) is None:
            left = deadline - time.monotonic()
            assert self._read(max(left, 0)), f"not within {timeout_seconds:g} s: {pattern}\n{self.text[-4000:]}"
        return match

    def wait(self, timeout_seconds: float = 30) -> int:
        """Wait for the end of the program; return its exit status."""
        deadline = time.monotonic() + timeout_seconds
        while self._master >= 0 and self._read(max(deadline - time.monotonic(), 0)):
            pass
        return self._process.wait(max(deadline - time.monotonic(), 0.1))

    def _read(self, timeout_seconds: float) -> bool:
        """Read the available output. Returns False if there is none in time, or at its end."""
        if not select.select([self._master], [], [], timeout_seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # on Linux: no process has the other side open
            return False
        self.written += data.decode(errors="replace")
        return bool(data)


@contextlib.contextmanager
def on_terminal(
    command: Sequence[str], *, columns: int = 80, lines: int = 24, environment: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Run a command as the leader of a session on a new terminal. It is killed at the end if it still runs."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    # without preexec_fn, which runs Python in a fork of this process and may close other threads' connections
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_STDIN, *command],
        cwd=TOP,
        env={**inherited, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(environment or {})},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    terminal = Terminal(master, process)
    try:
        yield terminal
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        terminal.close()
