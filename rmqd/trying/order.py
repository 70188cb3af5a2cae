"""What the process of a handler is told, and what it answers. All of it pickles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rmqd.config.model.root import RootConfig
from rmqd.trying.places import Author

Outcome = Literal["acked", "retried", "dead_lettered", "dropped", "expired", "died"]
"""What would become of a message. `dropped`: it failed in a broadcasting group, which has no retries."""


@dataclass(frozen=True, slots=True)
class HandlerOrder:
    """Which handler to make: that of the only group of a configuration."""

    config: RootConfig
    import_path: tuple[str, ...]
    """The parent's sys.path: the process must find the same handlers."""
    fault_file: str
    """The file for stack traces of a process that crashes or hangs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What would become of one message."""

    outcome: Outcome
    delay_level: int | None = None
    """Of a retry by a broker."""
    rest_seconds: float | None = None
    """Of a retry in place, in an orderly group: how long the queue would rest before it."""
    reason: str | None = None
    """Of a dead letter."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """How a call of the handler ended, and what that means for each message of its batch."""

    verdicts: tuple[Verdict, ...]
    seconds: float
    error: str | None = None
    """What the handler raised."""
    place: str | None = None
    """The line of its author that raised, as FILE:LINE in FUNCTION."""
    is_failure: bool = False
    """Whether it raised something else than Retry, DeadLetter or Suspend, or did not end by itself."""
    closing: Literal["commit", "rollback"] | None = None
    """What a handler of an orderly group with `auto_commit: false` asked for."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The handler was started."""

    author: Author
