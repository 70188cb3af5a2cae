"""The progress of a long command."""

from __future__ import annotations

import sys
from typing import Self

import typer

from rmqd.cli.render import say


class Progress:
    """Shows the progress of a command on standard error: in place on a terminal, else regularly on a separate line.

    As a context manager it clears its line at the end, so that the next output starts on an empty line.
    """

    def __init__(self, total: int, verb: str) -> None:
        import time

        self.done = 0
        self._total = total
        self._verb = verb
        self._now = time.monotonic
        self._shows_at = self._now() + _quiet_seconds()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            typer.echo("\r\033[K", nl=False, err=True)

    def tell(self, done: int) -> None:
        """Report the number done so far."""
        self.done = done
        if self._now() < self._shows_at:
            return
        self._shows_at = self._now() + _quiet_seconds()
        text = f"{done} of {self._total} {self._verb}"
        if sys.stderr.isatty():
            typer.echo(f"\r{text}\033[K", nl=False, err=True)
        else:
            say([text], err=True)


def _quiet_seconds() -> float:
    return 0.2 if sys.stderr.isatty() else 5.0
