"""Chooses the checkpoint of a group's next query: the last checkpoint, or a new one if the group was moved since.

The query stores its offsets in the checkpoint first, and then commits them to the brokers. A broker's offset may differ
from the checkpoint's offset for one of two reasons. If the driver ended before it could commit, the checkpoint is
right. If the group was consumed on the other engine, or an operator reset the group, the broker is right. Spark cannot
move a query to other offsets. So in the second case, a new generation of the checkpoint starts at the broker's offsets,
and the old generation is kept.

    <checkpoint>/generation-000001/checkpoint     written by Spark
                                  /note-000004.json

Three offsets of a queue distinguish the cases. `done` is the checkpoint's offset. `held` is the offset that the broker
is known to have on disk; it is recorded every few seconds and at a graceful end. `stored` is the broker's current
offset. All commits of the query are between `held` and `done`. So if `stored` is above `done`, or below both, another
program committed it.

A killed broker forgets the commits of its last seconds. So `held` is raised only to offsets that the broker had
BROKER_FLUSH_DELAY_SECONDS ago and still has. A 5.x broker keeps an operator's reset until a pull fetches it, so the
driver misses no reset. An older broker does not keep resets. If the driver is killed seconds after the group passed the
offset of a reset, the driver misses this reset.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.runtime.files import make_folder
from rmqd.spark.engine.checkpoint import GenerationNote, IsWritten, read_end_offsets, read_note, write_note
from rmqd.spark.pipelines.pipeline_query import written_batch_check
from rmqd.spark.session.hadoop_folder import HadoopFolder
from rmqd.spark.session.queue_queries import QueueResponses, existing_values_or_raise, retry_until_timeout
from rmqd.spark.session.spark_cluster import SparkCluster, cluster_of
from rmqd.spark.source.group_offsets import SubscribedQueues
from rmqd.spark.source.source_offsets import ByQueue
from rmqd.spark.source.source_options import SourceOptions
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.handlers.range_outcome import RangeOutcome
    from rmqd.spark.session.group_spec import GroupSpec


MAX_SHOWN_QUEUES: Final = 4


def offsets_moved_by_others(checkpointed: ByQueue, flushed: ByQueue, stored: ByQueue) -> dict[MessageQueue, int]:
    """Return the offsets in `stored` that the query cannot have committed, so another program has.

    `stored` are the brokers' current offsets, `checkpointed` the checkpoint's offsets, and `flushed` the offsets that
    the brokers are known to have on disk.
    """
    return {
        queue: offset
        for queue, offset in stored.items()
        if queue in checkpointed
        and (offset > checkpointed[queue] or offset < min(checkpointed[queue], flushed.get(queue, 0)))
    }


def describe_moved_offsets(checkpointed: ByQueue, new_offsets: ByQueue) -> str:
    """Describe why the group continues at `new_offsets`, for the log and the generation's note."""
    ahead = {queue: offset for queue, offset in new_offsets.items() if offset > checkpointed.get(queue, 0)}
    back = {queue: offset for queue, offset in new_offsets.items() if queue not in ahead}
    parts = []
    if ahead:
        parts.append(f"the group was consumed elsewhere, or moved forward: {_changes(checkpointed, ahead)}")
    if back:
        parts.append(f"the group was reset: {_changes(checkpointed, back)}")
    return "; ".join(parts)


def _changes(done: ByQueue, to: ByQueue) -> str:
    shown = [f"{queue} from {done.get(queue, 'nowhere')} to {to[queue]}" for queue in sorted(to)[:MAX_SHOWN_QUEUES]]
    return ", ".join(shown) + (f" and {len(to) - MAX_SHOWN_QUEUES} more queues" if len(to) > MAX_SHOWN_QUEUES else "")


log = structlog.get_logger(__name__)

BROKER_WAIT_SECONDS: Final = 60.0  # how long to wait for unreachable brokers at the start; see unavailableToleranceMs
NOTE_WRITE_INTERVAL_SECONDS: Final = 5.0
# how often to read the checkpoint while the brokers' offsets do not change; object stores charge for each read
CHECKPOINT_READ_SECONDS: Final = 30.0
MAX_KEPT_GENERATIONS: Final = 10  # a group that fails at a corrupt message adds a generation at each restart
BROKER_FLUSH_DELAY_SECONDS: Final = 10.0  # brokers write offsets to disk every 5 s (flushConsumerOffsetInterval)

CHECKPOINT_FOLDER: Final = "checkpoint"
_FOLDER: Final = re.compile(r"generation-([0-9]{6,})")


@dataclass(frozen=True, slots=True)
class CheckpointGeneration:
    """One checkpoint. `path` is its URL. While the checkpoint is empty, a query starts at `start_offsets`."""

    number: int
    path: str
    start_offsets: Mapping[MessageQueue, int] | None
    """None: the query starts at the group's offsets that the brokers have stored."""


def checkpoint_folder(spec: GroupSpec) -> str:
    """Return the folder, or its URL, that contains all checkpoint generations of a group."""
    return spec.spark.checkpoint or f"{spec.config.state_dir_of_group(spec.name)}/spark/{spec.name}"


def generations_of(spec: GroupSpec, spark: SparkSession) -> CheckpointGenerations:
    """Return a group's checkpoint generations. Raises RmqdError if their file system or the sink is unavailable."""
    if not spec.spark.checkpoint:
        with suppress(OSError):  # Hadoop reports the same error later, or the folder is not local
            make_folder(Path(checkpoint_folder(spec)))  # private; a folder that Hadoop creates is readable by all users
    is_written = None if spec.settings.pipeline is None else written_batch_check(spark, spec)
    return CheckpointGenerations(spec, HadoopFolder(spark, checkpoint_folder(spec)), is_written)


class CheckpointGenerations:
    """The checkpoint generations of one group. Methods block, are thread-safe, and raise RmqdError."""

    def __init__(self, spec: GroupSpec, folder: HadoopFolder, is_written: IsWritten | None = None) -> None:
        self._spec = spec
        self._folder = folder
        self._is_written = is_written
        self._subscribed = SubscribedQueues(
            SourceOptions(access=spec.access, topics=spec.topics, group=spec.group, include_retry_topic=True)
        )
        self._lock = threading.RLock()
        self._number = 0
        self._note = GenerationNote()
        self._noted_at = 0.0
        self._held: dict[MessageQueue, int] = {}
        self._done: ByQueue = {}  # the checkpoint's offsets at the last read
        self._done_at = -math.inf
        self._snapshots: deque[tuple[float, ByQueue, ByQueue]] = deque()  # time, brokers' offsets, checkpoint's offsets

    def prepare_generation(self) -> CheckpointGeneration:
        """Return the generation for the next query. Call this before each query, as the group's only member."""
        with self._lock:
            return retry_until_timeout(self._current, BROKER_WAIT_SECONDS)

    def store_resets(self, reset_offsets: ByQueue) -> None:
        """Write the offsets of an operator's reset to the generation's note. The next generation starts at them."""
        with self._lock:
            log.warning(
                "spark.group_reset",
                group=self._spec.name,
                to={str(queue): reset_offsets[queue] for queue in sorted(reset_offsets)},
            )
            self._write(replace(self._note, reset_offsets={**self._note.reset_offsets, **reset_offsets}))

    def store_resets_of(self, outcomes: Iterable[RangeOutcome]) -> bool:
        """Store the operators' resets that executors found in a micro-batch. Return whether they found any.

        Call this before the micro-batch is finished, because Spark then stores the batch's end offsets.
        """
        resets = {outcome.queue: outcome.reset_to for outcome in outcomes if outcome.reset_to is not None}
        if resets:
            self.store_resets(resets)
        return bool(resets)

    def store_moved_offsets(self) -> Mapping[MessageQueue, int]:
        """Return and store the new offsets of queues that were moved since `current`. If there are any, end the query.

        Call this every few seconds while the query runs, because executors find a reset only in a queue with messages.
        Raises RmqdError if some brokers do not answer, and no queue of the other brokers was moved.
        """
        with self._lock:
            if self._note.reset_offsets:
                return self._note.reset_offsets
            if time.monotonic() - self._done_at >= CHECKPOINT_READ_SECONDS:
                self._look_up_done()
            asked = self._ask_stored(self._done)
            stored = _present(asked)
            if any(at != self._done[queue] for queue, at in stored.items()):
                self._look_up_done()  # read after the brokers' answers, so it includes every commit of the query
            done = self._done
            changed = offsets_moved_by_others(done, self._held, stored) or self._ignored_commits(stored, done)
            if changed:
                self.store_resets(changed)
                return changed
            self._advance_held(stored, done)
            if (
                self._held != self._note.flushed_offsets
                and time.monotonic() - self._noted_at >= NOTE_WRITE_INTERVAL_SECONDS
            ):
                self._write(replace(self._note, flushed_offsets=dict(self._held)))
            existing_values_or_raise(asked)
            return {}

    def commit_end_offsets(self) -> None:
        """Commit the offsets at which the group continues, maybe on the other engine. Call this after the query's end.

        If some brokers do not answer, commit the offsets to the other brokers, and then raise RmqdError.
        """
        with self._lock:
            asked = self._ask_stored(self._look_up_done())
            done = self._look_up_done()
            # set by an operator or another member: do not overwrite them
            others = offsets_moved_by_others(done, self._held, _present(asked))
            wanted = {**done, **self._note.reset_offsets}
            places = {queue: at for queue, at in wanted.items() if queue in asked.values and queue not in others}
            told = self._cluster.commit(self._spec.group, places)
            self._held |= {queue: places[queue] for queue in told.values if queue not in self._note.reset_offsets}
            self._write(replace(self._note, flushed_offsets=dict(self._held)))
            existing_values_or_raise(asked)
            existing_values_or_raise(told)

    def _current(self) -> CheckpointGeneration:
        # if some topics are missing, the group reads the others; if all are missing, this raises
        queues = self._subscribed.refreshed(self._cluster, all_topics=False)
        asked = self._ask_stored(queues)
        existing_values_or_raise(asked)
        stored = _present(asked)  # if a broker lost a queue's offset, the query continues at the checkpoint's offset
        pending = existing_values_or_raise(self._cluster.pending_resets(self._spec.group, stored))
        resets = {queue: offset for queue, offset in pending.items() if offset is not None}
        self._number = max(map(int, _matches(self._folder.names())), default=0)
        last = read_note(self._folder, self._path(self._number)) if self._number else None
        if last is None:
            return self._begin(GenerationNote(reason="the first generation"))
        self._note = last
        if resets:
            self.store_resets(resets)
        done = self._look_up_done()
        elsewhere = offsets_moved_by_others(done, last.flushed_offsets, stored) if last.is_committed else {}
        # later entries win: a reset in the note is older than the brokers' offsets, and a pending reset is the newest
        changed = {**last.reset_offsets, **elsewhere, **resets}
        changed = {queue: at for queue, at in changed.items() if queue in queues}
        if not changed:
            return self._go_on()
        places = {**(stored if last.is_committed else {}), **done, **changed}
        reason = describe_moved_offsets(done, changed)
        self._number += 1
        log.warning("spark.generation_begun", group=self._spec.name, generation=self._number, reason=reason)
        starting = {queue: places[queue] for queue in sorted(queues) if queue in places}
        begun = self._begin(GenerationNote(start_offsets=starting, reason=reason, is_committed=False))
        self._delete_old()
        return begun

    def _begin(self, note: GenerationNote) -> CheckpointGeneration:
        self._number = max(self._number, 1)
        self._write(note)
        return self._go_on()

    def _go_on(self) -> CheckpointGeneration:
        note = self._note
        if not note.is_committed and note.start_offsets is not None:
            existing_values_or_raise(self._cluster.commit(self._spec.group, note.start_offsets))
            self._write(replace(note, is_committed=True))
        self._held = dict(self._note.flushed_offsets)
        self._snapshots.clear()
        self._done_at = -math.inf
        url = f"{self._folder.url}/{self._path(self._number)}/{CHECKPOINT_FOLDER}"
        return CheckpointGeneration(self._number, url, note.start_offsets)

    def _delete_old(self) -> None:
        for number in sorted(map(int, _matches(self._folder.names())))[:-MAX_KEPT_GENERATIONS]:
            self._folder.delete(self._path(number))
            log.info("spark.generation_deleted", group=self._spec.name, generation=number, kept=MAX_KEPT_GENERATIONS)

    def _ignored_commits(self, stored: ByQueue, done: ByQueue) -> dict[MessageQueue, int]:
        """Repeat commits that brokers lost. Return the offsets of pending resets, which make brokers ignore commits.

        A broker that was killed returns an old offset, and stores the repeated commit. A broker with a pending reset
        returns the reset's offset until a pull fetches it. It answers commits with success, but does not store them.
        """
        if not self._snapshots:
            return {}
        _, had, had_done = self._snapshots[-1]
        # lost: the stored offset has not changed since the last check, although the checkpoint was already above it
        lost = [queue for queue, at in stored.items() if at == had.get(queue) and at < had_done.get(queue, 0)]
        told = {queue: done[queue] for queue in lost if queue in done}
        # ignore brokers with errors: the next check asks them again, and this check must find resets at other brokers
        taken = self._cluster.commit(self._spec.group, told).values
        now = _present(self._ask_stored(taken))
        return {queue: at for queue, at in now.items() if at == stored[queue] != told[queue]}

    def _advance_held(self, stored: ByQueue, done: ByQueue) -> None:
        """Raise `held` to the offsets that brokers had BROKER_FLUSH_DELAY_SECONDS ago and still have.

        A broker has flushed such an offset to disk. A broker that does not answer, or returns a lower offset than
        before, may have been killed before it flushed the offset.
        """
        now = time.monotonic()
        self._snapshots.append((now, stored, done))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= now - BROKER_FLUSH_DELAY_SECONDS:
            self._snapshots.popleft()
        at, had, _ = self._snapshots[0]
        if at <= now - BROKER_FLUSH_DELAY_SECONDS:
            self._held |= {queue: offset for queue, offset in had.items() if stored.get(queue, -1) >= offset}

    def _write(self, note: GenerationNote) -> None:
        write_note(self._folder, self._path(self._number), note)
        self._note, self._noted_at = note, time.monotonic()

    def _look_up_done(self) -> ByQueue:
        path = f"{self._path(self._number)}/{CHECKPOINT_FOLDER}"
        done = read_end_offsets(self._folder, path, self._is_written, self._spec.topics)
        self._done, self._done_at = done or self._note.start_offsets or {}, time.monotonic()
        return self._done

    def _ask_stored(self, queues: Iterable[MessageQueue]) -> QueueResponses[int | None]:
        return self._cluster.committed_offsets(self._spec.group, queues)

    @property
    def _cluster(self) -> SparkCluster:
        return cluster_of(self._spec.access)

    @staticmethod
    def _path(number: int) -> str:
        return f"generation-{number:06}"


def _present(asked: QueueResponses[int | None]) -> dict[MessageQueue, int]:
    return {queue: offset for queue, offset in asked.values.items() if offset is not None}


def _matches(names: Iterable[str]) -> list[str]:
    return [found[1] for name in names if (found := _FOLDER.fullmatch(name))]
