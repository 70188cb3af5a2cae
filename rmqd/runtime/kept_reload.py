"""The handler of SIGHUP until the daemon can reload. It imports nothing, so it is installed at the very start."""

from __future__ import annotations


class RememberedReload:
    """Remembers a SIGHUP, which would otherwise end the process."""

    def __init__(self) -> None:
        self.is_requested = False

    def __call__(self, number: int, frame: object) -> None:
        """Called when SIGHUP arrives. `handle_signals` later requests the reload."""
        self.is_requested = True
