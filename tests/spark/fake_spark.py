"""Fake parts of a group's run, without Spark and without a broker. `log` lists the calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmqd.spark.engine.checkpoint_generations import CheckpointGeneration
from rmqd.spark.engine.driver_membership import GetProcessQueueInfos
from rmqd.spark.engine.spark_figures import BatchProgress, DriverMetrics
from rmqd.spark.engine.spark_parts import DeduplicationStorePoller
from rmqd.spark.handlers.range_outcome import OnBatch, RangeOutcome
from rmqd.spark.source.source_offsets import ByQueue

STEP_SECONDS = 0.02


class FakeQuery:
    """Runs until it is stopped, fails or ends. `busy` is True while a micro-batch runs."""

    def __init__(self, log: list[str], pause_file: str, on_batch: OnBatch) -> None:
        self.busy = False
        self.pause_file = Path(pause_file)
        self.on_batch = on_batch
        self._log = log
        self._over = threading.Event()
        self._error: Exception | None = None

    @property
    def isActive(self) -> bool:
        return not self._over.is_set()

    @property
    def status(self) -> dict[str, object]:
        return {"isTriggerActive": self.busy}

    def awaitTermination(self, seconds: int) -> bool:
        """Wait for STEP_SECONDS instead of `seconds`."""
        over = self._over.wait(STEP_SECONDS)
        if self._error is not None:
            raise self._error
        return over

    def stop(self) -> None:
        """Stop at once. Spark would interrupt a running batch."""
        self._log.append("stop of the query" + (", busy" if self.busy else ""))
        self._over.set()

    def end(self, error: Exception | None = None) -> None:
        """End without a stop."""
        self._error = error
        self._over.set()


class FakeSession:
    """A session that can only be stopped."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def stop(self) -> None:
        self._log.append("stop of Spark")


class FakeParts:
    """A fake of SparkParts, DriverMembership and CheckpointGenerations in one."""

    client_id = "10.0.0.1@spark-1"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.queries: list[FakeQuery] = []
        self.sent: dict[Any, int] = {}
        """Where an operator has sent the group, until the next generation."""
        self.on_reset: Callable[[ByQueue], None] = lambda resets: None
        self.held: GetProcessQueueInfos = dict
        self.on_progress: Callable[[BatchProgress], None] = lambda progress: None
        self.refuses_to_join: Exception | None = None
        self.session_error: Exception | None = None
        self.session_waits = threading.Event()
        self.session_waits.set()
        self.rival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.number = 0

    def membership(self, on_reset: Callable[[ByQueue], None], held: GetProcessQueueInfos) -> FakeParts:
        self.on_reset, self.held = on_reset, held
        return self

    def queue_poller(self, figures: object) -> FakePlaces:
        return FakePlaces()

    def deduplication_store_poller(self, figures: DriverMetrics) -> DeduplicationStorePoller | None:
        """Return None, unless a test replaces this method."""
        return None

    def start_session(self, on_progress: Callable[[BatchProgress], None]) -> FakeSession:
        """Wait for `session_waits`, which a test may clear."""
        self.log.append("start of Spark")
        self.on_progress = on_progress
        self.session_waits.wait(10)
        if self.session_error is not None:
            raise self.session_error
        return FakeSession(self.log)

    def checkpoint_generations(self, session: object) -> FakeParts:
        return self

    def start_query(
        self, session: object, generation: CheckpointGeneration, pause_file: str, on_batch: OnBatch
    ) -> FakeQuery:
        self.log.append(f"query {generation.number}")
        self.queries.append(FakeQuery(self.log, pause_file, on_batch))
        return self.queries[-1]

    async def store_start_offsets(self) -> None:
        """Do nothing."""

    async def join(self) -> None:
        """Raise `refuses_to_join` if a test has set it."""
        self.log.append("join")
        if self.refuses_to_join is not None:
            raise self.refuses_to_join

    async def watch_members(self) -> None:
        """Wait until a test ends `rival`."""
        await asyncio.shield(self.rival)

    async def leave(self) -> None:
        self.log.append("leave")

    def prepare_generation(self) -> CheckpointGeneration:
        """Return a new generation at the new offsets if the group was moved."""
        if self.sent or not self.number:
            self.number += 1
        starting, self.sent = dict(self.sent), {}
        return CheckpointGeneration(self.number, f"/checkpoint/{self.number}", starting)

    def store_resets(self, reset_offsets: ByQueue) -> None:
        self.sent |= reset_offsets

    def store_resets_of(self, outcomes: list[RangeOutcome]) -> bool:
        """Store the resets that executors found."""
        resets = {one.queue: one.reset_to for one in outcomes if one.reset_to is not None}
        self.sent |= resets
        return bool(resets)

    def store_moved_offsets(self) -> ByQueue:
        return self.sent

    def commit_end_offsets(self) -> None:
        self.log.append("last commit")


class FakePlaces:
    """A QueuePoller that does not poll."""

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()
