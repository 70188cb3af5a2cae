"""The live view of `rmqd top`: the terminal, the keys, the requests to the daemon, and the main loop.

Threads send the requests, so that keys work while the daemon is slow or unreachable. A key that would change the daemon
asks for confirmation first.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final

from rich.console import RenderableType

from rmqd.cli.terminal.daemon_client import DaemonClient, DaemonRefusedError, DaemonUnreachableError
from rmqd.cli.top import top_frame
from rmqd.daemon.http.status_view import Fields, outcome_text
from rmqd.runtime.live_screen import AlternateScreen
from rmqd.runtime.plain_text import printable_lines, printable_values

DIAGNOSE_SECONDS: Final = 60.0


class DaemonWatch:
    """A daemon's last status, and threads that send requests to the daemon and call `woken` after each response."""

    def __init__(
        self, daemon: DaemonClient, document: dict[str, Any], where: Sequence[str], interval_seconds: float
    ) -> None:
        self._daemon = daemon
        self._where = where
        self._interval_seconds = interval_seconds
        self._document = printable_values(document)
        self._error = ""
        self._at = time.monotonic()
        self._soon = threading.Event()
        self.request_results: queue.SimpleQueue[Callable[[top_frame.ViewState], top_frame.ViewState]] = (
            queue.SimpleQueue()
        )
        """The results of requests, as functions that add the result to the state of the view."""
        self.woken: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start the thread that queries the daemon until the process ends."""
        threading.Thread(target=self._ask_forever, name="rmqd top asks", daemon=True).start()

    def last_status(self, time_of_day: str) -> top_frame.LastStatus:
        return top_frame.LastStatus(self._document, time.monotonic() - self._at, self._error, time_of_day)

    def _ask_forever(self) -> None:
        while True:
            self._soon.wait(self._interval_seconds)
            self._soon.clear()
            try:
                document = self._daemon.status()
            except (DaemonUnreachableError, DaemonRefusedError) as error:
                self._error = str(error)
            else:
                self._document, self._error, self._at = printable_values(document), "", time.monotonic()
            self.woken()

    def request(self, wish: top_frame.PauseRequest | top_frame.DiagnoseRequest) -> None:
        """Start a thread that executes a request. The result is put into `request_results`."""

        def do() -> None:
            if isinstance(wish, top_frame.PauseRequest):
                notice = self._switched(wish)
                self.request_results.put(lambda state: replace(state, notice=notice))
            else:
                lines = self._diagnosed(wish.group)
                self.request_results.put(lambda state: state.with_output(lines))
            self._soon.set()
            self.woken()

        threading.Thread(target=do, name="rmqd top requests", daemon=True).start()

    def _switched(self, switch: top_frame.PauseRequest) -> str:
        try:
            report = self._daemon.pause_or_resume(
                switch.action, switch.group, switch.topic, switch.broker, switch.queue
            )
        except (DaemonUnreachableError, DaemonRefusedError) as error:
            return printable_lines(f"not {switch.action}d: {error}")
        return printable_lines(outcome_text(report))

    def _diagnosed(self, group: str) -> tuple[str, ...]:
        command = [sys.executable, "-m", "rmqd", "diagnose", group, *self._where]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "NO_COLOR": "1"},
                timeout=DIAGNOSE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return (printable_lines(f"it did not finish: {error}"),)
        return tuple(printable_lines(line) for line in done.stdout.decode(errors="replace").splitlines())


BACK_KEYS: Final = ("escape", "left", "backspace")
OPEN_KEYS: Final = ("enter", "right")
LINE_STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1}
PAGE_STEPS: Final = {"page up": -1, "page down": 1, " ": 1}
END_KEYS: Final = {"home": 0, "g": 0, "end": -1, "G": -1}


class Quit:
    """A user's request to end `rmqd top`."""


@dataclass(frozen=True, slots=True)
class KeyResult:
    state: top_frame.ViewState
    wish: top_frame.PauseRequest | top_frame.DiagnoseRequest | Quit | None = None


def handle_key(state: top_frame.ViewState, key: str, document: dict[str, Any]) -> KeyResult:
    """Return the state after a key (a character, or a name such as `enter`), and the user's request, if any."""
    if key == "ctrl-c":
        return KeyResult(state, Quit())
    state = replace(state, notice="")
    if state.question is not None:
        if key in "yY":
            return KeyResult(replace(state, question=None), state.question)
        return KeyResult(replace(state, question=None, notice="nothing was changed"))
    if state.typed is not None:
        return KeyResult(_type(state, state.typed, key))
    if state.pages is not None:
        return KeyResult(_turn(state, state.pages, key))
    return _in_list(state, key, document)


def _type(state: top_frame.ViewState, typed: str, key: str) -> top_frame.ViewState:
    if key == "escape":
        return replace(state.with_listing(filter=""), typed=None)
    if key == "enter":
        return replace(state, typed=None)
    typed = typed[:-1] if key == "backspace" else typed + key if len(key) == 1 else typed
    return replace(state.with_listing(filter=typed), typed=typed)


def _turn(state: top_frame.ViewState, pages: top_frame.TextOverlay, key: str) -> top_frame.ViewState:
    if key in (*BACK_KEYS, "q", "?"):
        return replace(state, pages=None)
    last = max(0, len(pages.lines or ()) - state.page)
    step = LINE_STEPS.get(key, PAGE_STEPS.get(key, 0) * state.page)
    first = END_KEYS[key] * -last if key in END_KEYS else pages.first + step
    return replace(state, pages=replace(pages, first=min(max(0, first), last)))


def _in_list(state: top_frame.ViewState, key: str, document: dict[str, Any]) -> KeyResult:
    if key == "q":
        return KeyResult(state, Quit())
    if key in ("?", "h"):
        return KeyResult(replace(state, pages=top_frame.TextOverlay("help", top_frame.HELP)))
    if key == "/":
        return KeyResult(replace(state, typed=state.listing.filter))
    if key in ("<", ">"):
        places = len(state.listing.columns)
        return KeyResult(state.with_listing(sort=(state.listing.sort + (1 if key == ">" else -1)) % places))
    if key == "r":
        return KeyResult(state.with_listing(backward=not state.listing.backward))
    if key in BACK_KEYS:
        return KeyResult(replace(state, group="") if state.group else state.with_listing(filter=""))
    chosen = state.chosen(document)
    return KeyResult(state) if chosen is None else _on_row(state, key, document, chosen)


def _on_row(state: top_frame.ViewState, key: str, document: dict[str, Any], chosen: Fields) -> KeyResult:
    """Return the result of a key that moves the cursor, or acts on `chosen`, the row under the cursor."""
    if key in LINE_STEPS or key in PAGE_STEPS or key in END_KEYS:
        return KeyResult(_move(state, key, document))
    name = state.group or str(chosen["name"])
    if key in OPEN_KEYS and not state.group:
        return KeyResult(replace(state, group=name, queues=replace(state.queues, cursor="", filter="")))
    if key == "p" and chosen.get("is_retry"):
        return KeyResult(replace(state, notice="a retry queue can only be paused with its whole group"))
    if key == "p":
        return KeyResult(replace(state, question=_switch(name, document, chosen)))
    if key == "d":
        return KeyResult(
            replace(state, pages=top_frame.TextOverlay(f"rmqd diagnose {name}", None)), top_frame.DiagnoseRequest(name)
        )
    return KeyResult(state)


def _move(state: top_frame.ViewState, key: str, document: dict[str, Any]) -> top_frame.ViewState:
    rows = state.rows(document)
    place = state.listing.at(rows) + LINE_STEPS.get(key, PAGE_STEPS.get(key, 0) * state.page)
    place = END_KEYS[key] % len(rows) if key in END_KEYS else min(max(0, place), len(rows) - 1)
    return state.with_listing(cursor=top_frame.key_of(rows[place]))


def _switch(name: str, document: dict[str, Any], chosen: Fields) -> top_frame.PauseRequest:
    """Return a request for the chosen group or queue: to resume if it is paused, else to pause."""
    if "queue" not in chosen:
        return top_frame.PauseRequest("resume" if chosen["paused"] else "pause", name)
    group = top_frame.group_of(document, name) or {"paused": False, "pauses": []}
    # a queue id of -1 in the document stands for all queues of the broker, because the group pops
    number = chosen["queue"] if chosen["queue"] >= 0 else None
    scope = {"topic": chosen["topic"], "broker": chosen["broker"], "queue": number}
    is_paused = chosen["state"] == "paused" or scope in group["pauses"]
    return top_frame.PauseRequest("resume" if is_paused else "pause", name, **scope)


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
    """Yield the keys in a terminal's input, as characters or names such as `up`. Omits unknown escape sequences."""
    for found in _KEY.findall(text):
        if (key := NAMES.get(found, found)).isprintable():
            yield key


class TerminalScreen:
    """The terminal of `rmqd top`. It is in raw mode inside a `with raw_mode()` block, and is restored afterwards."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._screen = AlternateScreen()

    @property
    def size(self) -> top_frame.TerminalSize:
        return top_frame.TerminalSize(*self._screen.size)

    @contextlib.contextmanager
    def raw_mode(self) -> Iterator[None]:
        """Return a context that reads single keys without echo. SIGTERM and SIGHUP raise SystemExit in it."""
        handled = {signal.SIGWINCH: lambda *_: self.wake(), signal.SIGTERM: _end, signal.SIGHUP: _end}
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
        settings[3] &= ~termios.ISIG  # Ctrl-C and Ctrl-Z send no signals
        termios.tcsetattr(self._keys, termios.TCSADRAIN, settings)
        self._screen.start()

    def _close(self) -> None:
        self._screen.stop()
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._settings)

    def suspend(self) -> None:
        """Restore the terminal and stop the process, like Ctrl-Z. Show the view again when the shell continues it."""
        self._close()
        os.kill(os.getpid(), signal.SIGTSTP)
        self._open()

    def show(self, picture: RenderableType) -> None:
        """Draw a frame over the previous one."""
        self._screen.show(picture)

    def wake(self) -> None:
        """Make a waiting call of `keys` return. Any thread may call this method."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"\0")

    def keys(self, patience_seconds: float) -> list[str]:
        """Wait for keys and return them; return an empty list after `patience_seconds`, or if `wake` is called.

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


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


TICK_SECONDS: Final = 1.0  # the view is redrawn this often without keys or news, because it shows ages and the time


def run(watch: DaemonWatch) -> None:
    """Show the live view until the user quits or the terminal is closed."""
    screen, state = TerminalScreen(), top_frame.ViewState()
    watch.woken = screen.wake
    watch.start()
    with screen.raw_mode():
        while True:
            while not watch.request_results.empty():
                state = watch.request_results.get()(state)
            state = replace(state, page=screen.size.rows)
            last_status = watch.last_status(top_frame.clock_time())
            screen.show(top_frame.frame(state, last_status, screen.size))
            try:
                keys = screen.keys(TICK_SECONDS)
            except (EOFError, OSError):
                return
            for key in keys:
                if key == "ctrl-z":
                    screen.suspend()
                    continue
                pressed = handle_key(state, key, last_status.document)
                state = pressed.state
                if isinstance(pressed.wish, Quit):
                    return
                if pressed.wish is not None:
                    watch.request(pressed.wish)
