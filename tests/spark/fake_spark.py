"""Parts of a group's run that do as the test says, without Spark and without a broker; `log` is what they were told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmqd.spark.engine.checkpoint_generations import CheckpointGeneration
from rmqd.spark.engine.driver_membership import Held
from rmqd.spark.engine.spark_figures import BatchProgress, DriverMetrics
from rmqd.spark.engine.spark_parts import DeduplicationStorePoller
from rmqd.spark.handlers.range_outcome import OnBatch, RangeOutcome
from rmqd.spark.source.source_offsets import ByQueue

STEP_SECONDS = 0.02


class FakeQuery:
    """Runs until it is stopped, fails or ends; `busy` is a micro-batch under way."""

    def __init__(self, log: list[str], pause_file: str, on_batch: OnBatch) -> None:
        self.busy = False
        self.pause_file = Path(pause_file)
        self.on_batch = on_batch
        self._log = log
        self._over = threading.Event()
        self._error: Exception | None = None

    @property
    def isActive(self) -> bool:
        """As Spark has it."""
        return not self._over.is_set()

    @property
    def status(self) -> dict[str, object]:
        """As Spark has it."""
        return {"isTriggerActive": self.busy}

    def awaitTermination(self, seconds: int) -> bool:
        """As Spark has it, with less patience."""
        over = self._over.wait(STEP_SECONDS)
        if self._error is not None:
            raise self._error
        return over

    def stop(self) -> None:
        """Spark would interrupt a batch."""
        self._log.append("stop of the query" + (", busy" if self.busy else ""))
        self._over.set()

    def end(self, error: Exception | None = None) -> None:
        """By itself."""
        self._error = error
        self._over.set()


class FakeSession:
    """Can be stopped."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def stop(self) -> None:
        """Remember it."""
        self._log.append("stop of Spark")


class FakeParts:
    """In place of SparkParts; presence and checkpoints of themselves too."""

    client_id = "10.0.0.1@spark-1"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.queries: list[FakeQuery] = []
        self.sent: dict[Any, int] = {}
        """Where an operator has sent the group, until the next generation."""
        self.on_reset: Callable[[ByQueue], None] = lambda resets: None
        self.held: Held = dict
        self.on_progress: Callable[[BatchProgress], None] = lambda progress: None
        self.refuses_to_join: Exception | None = None
        self.session_error: Exception | None = None
        self.session_waits = threading.Event()
        self.session_waits.set()
        self.rival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.number = 0

    def membership(self, on_reset: Callable[[ByQueue], None], held: Held) -> FakeParts:
        """This one."""
        self.on_reset, self.held = on_reset, held
        return self

    def queue_poller(self, figures: object) -> FakePlaces:
        """One that sees nothing."""
        return FakePlaces()

    def deduplication_store_poller(self, figures: DriverMetrics) -> DeduplicationStorePoller | None:
        """None, unless the test says otherwise."""
        return None

    def start_session(self, on_progress: Callable[[BatchProgress], None]) -> FakeSession:
        """After a while, if the test wants."""
        self.log.append("start of Spark")
        self.on_progress = on_progress
        self.session_waits.wait(10)
        if self.session_error is not None:
            raise self.session_error
        return FakeSession(self.log)

    def checkpoint_generations(self, session: object) -> FakeParts:
        """This one."""
        return self

    def start_query(
        self, session: object, generation: CheckpointGeneration, pause_file: str, on_batch: OnBatch
    ) -> FakeQuery:
        """The next one."""
        self.log.append(f"query {generation.number}")
        self.queries.append(FakeQuery(self.log, pause_file, on_batch))
        return self.queries[-1]

    async def store_start_offsets(self) -> None:
        """Nothing is to be done."""

    async def join(self) -> None:
        """Alone, unless the test says otherwise."""
        self.log.append("join")
        if self.refuses_to_join is not None:
            raise self.refuses_to_join

    async def watch_members(self) -> None:
        """Until somebody comes."""
        await asyncio.shield(self.rival)

    async def leave(self) -> None:
        """Remember it."""
        self.log.append("leave")

    def current(self) -> CheckpointGeneration:
        """A new one where the group was sent elsewhere, which begins there."""
        if self.sent or not self.number:
            self.number += 1
        starting, self.sent = dict(self.sent), {}
        return CheckpointGeneration(self.number, f"/checkpoint/{self.number}", starting)

    def store_resets(self, reset_offsets: ByQueue) -> None:
        """Keep it."""
        self.sent |= reset_offsets

    def store_resets_of(self, outcomes: list[RangeOutcome]) -> bool:
        """Keep what executors met."""
        resets = {one.queue: one.reset_to for one in outcomes if one.reset_to is not None}
        self.sent |= resets
        return bool(resets)

    def find_moved_offsets(self) -> ByQueue:
        """What was kept."""
        return self.sent

    def commit_end_offsets(self) -> None:
        """Remember it."""
        self.log.append("last commit")


class FakePlaces:
    """Sees nothing."""

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.Event().wait()
