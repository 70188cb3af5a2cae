"""A program on a terminal of its own, as a person has it: what it writes, and the keys that are pressed."""

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
    """The master's side of a pseudo terminal. Made by `on_terminal`."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.written = ""
        """Everything so far, escape sequences included."""
        self._master = master
        self._process = process

    @property
    def text(self) -> str:
        """Everything so far, without escape sequences."""
        return ESCAPES.sub("", self.written)

    def press(self, key: str) -> None:
        """Press a key: "\\x03" is Ctrl-C, which the terminal makes a signal of."""
        os.write(self._master, key.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the terminal's size; the kernel tells the program."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def close(self) -> None:
        """Take the terminal away, as when its window is closed."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def wait_for(self, pattern: str, timeout_seconds: float = 30) -> re.Match[str]:
        """Wait until the text has this; AssertionError with the end of it after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while (match := re.search(pattern, self.text)) is None:
            left = deadline - time.monotonic()
            assert self._read(max(left, 0)), f"not within {timeout_seconds:g} s: {pattern}\n{self.text[-4000:]}"
        return match

    def wait(self, timeout_seconds: float = 30) -> int:
        """Wait for the end of the program; its exit status."""
        deadline = time.monotonic() + timeout_seconds
        while self._master >= 0 and self._read(max(deadline - time.monotonic(), 0)):
            pass
        return self._process.wait(max(deadline - time.monotonic(), 0.1))

    def _read(self, timeout_seconds: float) -> bool:
        """Read what is there; False where nothing comes any more."""
        if not select.select([self._master], [], [], timeout_seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux tells that nobody has the other side open
            return False
        self.written += data.decode(errors="replace")
        return bool(data)


@contextlib.contextmanager
def on_terminal(
    command: Sequence[str], *, columns: int = 80, lines: int = 24, environment: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Run a command as the leader of a session whose terminal this is; killed at the end if it still runs."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    # not by preexec_fn: it runs Python in a fork of this process, which may close connections that other threads have
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
