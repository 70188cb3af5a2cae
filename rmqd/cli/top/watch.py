"""Queries the daemon in the background, so that keys do not wait for a slow or unreachable daemon."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from rmqd.cli.daemon_client import DaemonClient, DaemonRefusedError, DaemonUnreachableError
from rmqd.cli.top.frame import Heard
from rmqd.cli.top.state import Diagnose, Switch
from rmqd.process.logs.printable import printable_lines, printable_values

DIAGNOSE_SECONDS: Final = 60.0


class Watch:
    """A daemon's last document, and requests to it. `woken` is called whenever there is news."""

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
        self.notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        """The results of pauses and resumes."""
        self.pages: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        """The output of `rmqd diagnose`."""
        self.woken: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Query the daemon regularly, until the process ends."""
        threading.Thread(target=self._ask_forever, name="rmqd top asks", daemon=True).start()

    def heard(self, time_of_day: str) -> Heard:
        """Return the last document, and the last error."""
        return Heard(self._document, time.monotonic() - self._at, self._error, time_of_day)

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

    def switch(self, switch: Switch) -> None:
        """Pause or resume a group, or a queue of it. `notices` gets the result."""

        def do() -> None:
            self.notices.put(self._switched(switch))
            self._soon.set()
            self.woken()

        threading.Thread(target=do, name="rmqd top changes", daemon=True).start()

    def _switched(self, switch: Switch) -> str:
        from rmqd.cli.control import outcome_text

        try:
            report = self._daemon.switch(switch.action, switch.group, switch.topic, switch.broker, switch.queue)
        except (DaemonUnreachableError, DaemonRefusedError) as error:
            return printable_lines(f"not {switch.action}d: {error}")
        return printable_lines(outcome_text(report))

    def diagnose(self, wish: Diagnose) -> None:
        """Diagnose a group. `pages` gets the command's output."""

        def do() -> None:
            self.pages.put(self._diagnosed(wish.group))
            self.woken()

        threading.Thread(target=do, name="rmqd top diagnoses", daemon=True).start()

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
