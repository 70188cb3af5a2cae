"""The requests to a handler's process, and its responses. All of them are picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rmqd.config.model.root import RootConfig
from rmqd.trying.places import Author

Outcome = Literal["acked", "retried", "dead_lettered", "dropped", "expired", "died"]
"""How a message would be settled. `dropped`: it failed in a broadcasting group, which has no retries."""


@dataclass(frozen=True, slots=True)
class HandlerOrder:
    """The specification of a handler: the handler of the configuration's only group."""

    config: RootConfig
    import_path: tuple[str, ...]
    """The parent's sys.path: the process must find the same handlers."""
    fault_file: str
    """The file for stack traces of a process that crashes or hangs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one message would be settled."""

    outcome: Outcome
    delay_level: int | None = None
    """For a retry by a broker."""
    rest_seconds: float | None = None
    """For a retry in place in an orderly group: how long the queue would be suspended before it."""
    reason: str | None = None
    """For a dead letter."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call, and how it would settle each message of its batch."""

    verdicts: tuple[Verdict, ...]
    seconds: float
    error: str | None = None
    """The handler's exception."""
    place: str | None = None
    """The source line of the handler that raised, as FILE:LINE in FUNCTION."""
    is_failure: bool = False
    """Whether it raised an exception other than Retry, DeadLetter or Suspend, or did not end."""
    closing: Literal["commit", "rollback"] | None = None
    """The request of a handler of an orderly group with `auto_commit: false`."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The handler was started."""

    author: Author
