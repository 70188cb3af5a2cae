"""The live picture of `rmqd top` and `rmqd demo`, on the terminal's alternate screen.

Import it only to show a picture, because it imports rich.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text


class AlternateScreen:
    """The terminal while a command draws pictures on it, one after another. `stop` restores the previous content."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None

    @property
    def size(self) -> tuple[int, int]:
        """The width and the height of the terminal, in characters."""
        return self._console.size

    @property
    def is_ascii(self) -> bool:
        """Whether the terminal's encoding has only ASCII characters."""
        return self._console.options.ascii_only

    def start(self, text: str = "") -> None:
        """Switch the terminal to its alternate screen and show `text`. Raises OSError if the terminal is closed."""
        self._live = Live(
            Text(text),
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def stop(self) -> None:
        """Restore the terminal, if it is still open."""
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()

    def show(self, picture: RenderableType) -> None:
        """Draw `picture` over the last picture. Raises OSError if the terminal is closed."""
        assert self._live is not None
        self._live.update(picture, refresh=True)


def fill_screen(lines: Sequence[Text], end: Sequence[Text], height: int) -> Group:
    """Return a picture that fills the terminal's height: `lines` at the top, and `end` at the bottom."""
    room = max(0, height - len(end))
    shown = [*lines[:room], *([Text()] * (room - len(lines))), *end]
    for line in shown:
        line.no_wrap = True
    return Group(*shown)
