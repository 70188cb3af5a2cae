"""Exit codes of the rmqd command (69 and 78 as in sysexits.h)."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of the command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNAVAILABLE = 69
    """A name server, a broker or a running daemon could not be reached."""
    CONFIG = 78
    """The configuration is wrong; nothing was connected."""
    INTERRUPTED = 130
    """Ctrl-C interrupted a command that ends on its own. Commands that run until they are stopped exit with OK at the
    first Ctrl-C.
    """


OK = ExitCode.OK
FAILURE = ExitCode.FAILURE
USAGE = ExitCode.USAGE
UNAVAILABLE = ExitCode.UNAVAILABLE
CONFIG = ExitCode.CONFIG
