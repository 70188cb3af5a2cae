"""The terminal: reads keys as they are pressed, shows pictures on the alternate screen, and restores it at the end."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from rmqd.cli.top.frame import Size

NAMES: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1bOA": "up", "\x1bOB": "down",
    "\x1bOC": "right", "\x1bOD": "left", "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home",
    "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end", "\x1bOH": "home", "\x1bOF": "end", "\x1b": "escape",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x03": "ctrl-c", "\x1a": "ctrl-z",
    "\x06": "page down", "\x02": "page up",
}  # fmt: skip
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[~A-Za-z]|\x1bO[A-Za-z]|.", re.DOTALL)
_CHUNK: Final = 4096


def keys_in(text: str) -> Iterator[str]:
    """Yield the keys in a terminal's input: a character, or a name such as `up`. Unknown sequences are omitted."""
    for found in _KEY.findall(text):
        if (key := NAMES.get(found, found)).isprintable():
            yield key


class Screen:
    """A terminal that is taken for a block and then restored, also on Ctrl-Z and on signals."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._console = Console(force_terminal=True, highlight=False, markup=False, emoji=False)
        self._live = self._new_live()

    @property
    def size(self) -> Size:
        """The current size."""
        return Size(*self._console.size)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Read single keys without echo. Signals that end a process end the view first."""
        handled = {signal.SIGWINCH: self._on_signal, signal.SIGTERM: _end, signal.SIGHUP: _end}
        before = {number: signal.signal(number, handler) for number, handler in handled.items()}
        self._settings = termios.tcgetattr(self._keys)
        self._open()
        try:
            yield
        finally:
            self._close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _open(self) -> None:
        tty.setcbreak(self._keys)
        settings = termios.tcgetattr(self._keys)
        settings[3] &= ~termios.ISIG  # Ctrl-C and Ctrl-Z are keys
        termios.tcsetattr(self._keys, termios.TCSADRAIN, settings)
        self._live.start(refresh=True)

    def _close(self) -> None:
        with contextlib.suppress(OSError, termios.error):
            self._live.stop()
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._settings)

    def suspend(self) -> None:
        """Restore the terminal and stop, like Ctrl-Z; take it again when the shell continues the process."""
        self._close()
        os.kill(os.getpid(), signal.SIGTSTP)
        self._live = self._new_live()
        self._open()

    def _new_live(self) -> Live:
        return Live(
            Text(), console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def show(self, picture: RenderableType) -> None:
        """Draw over the last picture."""
        self._live.update(picture, refresh=True)

    def wake(self) -> None:
        """End the wait for a key."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"\0")

    def keys(self, patience_seconds: float) -> list[str]:
        """Return the pressed keys as soon as there are any; nothing after a timeout or a call of `wake`.

        Raises EOFError if the terminal is closed.
        """
        ready, _, _ = select.select([self._keys, self._woken], [], [], patience_seconds)
        if self._woken in ready:
            os.read(self._woken, _CHUNK)
        if self._keys not in ready:
            return []
        sent = os.read(self._keys, _CHUNK)
        if not sent:
            raise EOFError
        return list(keys_in(sent.decode(errors="replace")))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.wake()


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
