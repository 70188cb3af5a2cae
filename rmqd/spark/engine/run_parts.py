"""What a group's run is made of, as the run sees it: so that it can be tried without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rmqd.spark.engine.figures import Figures
from rmqd.spark.engine.listener import BatchProgress
from rmqd.spark.handlers.outcome import RangeOutcome
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.spark.engine.generations import Generation

Resets = Mapping[MessageQueue, int]
"""Offsets to go on at, by an operator's word."""
OnBatch = Callable[[int, list[RangeOutcome]], None]


class Membership(Protocol):
    """The group's presence on the brokers: see `presence`."""

    @property
    def client_id(self) -> str:
        """Its name among the members."""

    async def join(self) -> None:
        """Raises GroupHeldElsewhereError."""

    async def found(self) -> None:
        """Store where the group begins, if it is new."""

    async def watch(self) -> None:
        """Until cancelled. Raises GroupHeldElsewhereError."""

    async def leave(self) -> None:
        """Also without having joined."""


class Checkpoints(Protocol):
    """The group's generations: see `generations`. Every method blocks."""

    def current(self) -> Generation:
        """Where to go on."""

    def note(self, resets: Resets) -> None:
        """Keep what an operator wants."""

    def note_outcomes(self, outcomes: list[RangeOutcome]) -> bool:
        """The same as executors met it; whether there is any."""

    def moved(self) -> Resets:
        """Where the group was sent since `current`."""

    def finish(self) -> None:
        """Tell the brokers all that is done."""


class Watcher(Protocol):
    """Looks at the group's queues: see `queue_places`."""

    async def watch(self) -> None:
        """Until cancelled."""


class Parts(Protocol):
    """What a run is made of. Everything that starts or asks Spark blocks, and is called in a thread."""

    def presence(self, on_reset: Callable[[Resets], None]) -> Membership:
        """Connects nothing yet."""

    def places(self, figures: Figures) -> Watcher:
        """Connects nothing yet."""

    def session(self, on_progress: Callable[[BatchProgress], None]) -> Any:
        """Start Spark. `on_progress` is called in a thread of Spark's."""

    def checkpoints(self, session: Any) -> Checkpoints:
        """The group's."""

    def start_query(self, session: Any, generation: Generation, pause_file: str, on_batch: OnBatch) -> Any:
        """Start the query of a handler or of a pipeline."""
