"""Calls a stream reader in the order in which Spark's MicroBatchExecution does, without Spark.

The order was taken from PySpark 4.3: `initialOffset` twice before the first batch, `latestOffset` with the end of the
last batch at every poll, a batch whenever the offset's text has changed (and an empty first one), `commit` of a batch
only when the next one is planned. Offsets pass through JSON, partitions through pickle, as between Spark's processes.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from rmqd.spark.session.queue_range import QueueRange
from rmqd.spark.source.source_format import RocketMQSource
from rmqd.spark.source.stream_reader import RocketMQStreamReader


class Killed(Exception):
    """The test killed the query's processes."""


@dataclass
class Checkpoint:
    """The logs that a killed query leaves behind."""

    offsets: list[str] = field(default_factory=list)
    commits: int = 0


class Query:
    """One run of a query. `rows` are the bodies that its batches returned, a list for each batch."""

    def __init__(self, checkpoint: Checkpoint, options: dict[str, str], *, available_now: bool = False) -> None:
        source = RocketMQSource(options)
        source.schema()
        reader = pickle.loads(pickle.dumps(source)).streamReader(StructType())
        pickle.dumps(reader)  # Spark's planner sends it to executors
        assert isinstance(reader, RocketMQStreamReader)
        self.reader = reader
        self.checkpoint = checkpoint
        self.rows: list[list[str]] = []
        self.ranges: list[list[QueueRange]] = []
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self._limit = self.reader.getDefaultReadLimit()

    def poll(self, *, die_before_commit: bool = False) -> bool:
        """Run one batch if there is one. With `die_before_commit`, raise Killed before it is recorded as done."""
        log = self.checkpoint
        if len(log.offsets) == log.commits:
            start = log.offsets[-1] if log.offsets else self._call_initial()
            end = self._text(self.reader.latestOffset(json.loads(start), self._limit))
            if log.offsets and end == start:
                return False
            log.offsets.append(end)
            if log.commits:
                self.reader.commit(json.loads(log.offsets[log.commits - 1]))
        start = log.offsets[-2] if len(log.offsets) > 1 else self._call_initial()
        self._run(json.loads(start), json.loads(log.offsets[-1]))
        if die_before_commit:
            raise Killed
        log.commits += 1
        return True

    def run_until_idle(self) -> list[list[str]]:
        """Poll until there is nothing to do, then once more. Return the bodies of all batches so far."""
        while self.poll():
            assert len(self.rows) < 100, "the query never becomes idle"
        assert not self.poll()
        return self.rows

    def _run(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        partitions = [pickle.loads(pickle.dumps(part)) for part in self.reader.partitions(start, end)]
        assert all(isinstance(part, InputPartition) for part in partitions)
        self.ranges.append([one for part in partitions for one in part.value])
        self.rows.append(
            [
                row["body"].decode()
                for part in partitions
                for batch in self.reader.read(part)
                for row in batch.select(["body"]).to_pylist()
            ]
        )

    def _call_initial(self) -> str:
        return self._text(self.reader.initialOffset())

    @staticmethod
    def _text(offset: dict[str, Any]) -> str:
        return json.dumps(offset)
