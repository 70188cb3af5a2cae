"""Reads ranges of queues on an executor of `spark.read` and `spark.readStream`, blocking.

`range_plan` decides what to pull and what responses mean; this module sends, waits and passes messages on.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import structlog

from rmqd.errors import RmqdError
from rmqd.spark.cluster import cluster_of
from rmqd.spark.process_log import log_to_stderr
from rmqd.spark.source.arrow import BatchBuilder
from rmqd.spark.source.columns import Decoding
from rmqd.spark.source.framed_reply import FramedReply
from rmqd.spark.source.pull_connection import PullConnection, keep_connection, take_connection
from rmqd.spark.source.range_plan import RangePlan, ResetByOperator
from rmqd.spark.source.records import Origin

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from rmqd.spark.queue_range import QueueRange
    from rmqd.wire.command import RemotingCommand

log = structlog.get_logger(__name__)


def read_ranges(ranges: Sequence[QueueRange], decoding: Decoding) -> Generator[pa.RecordBatch, None, int]:
    """Yield the messages of a task's ranges as record batches, one range after the other, each in its queue's order.

    Returns the number of lost messages. Raises DataLossError if a broker no longer has all of them and the ranges
    should fail, ProtocolError for a corrupt message unless permitted, and the error of the plan if no replica returns a
    readable response for `patience_seconds`.
    """
    log_to_stderr()
    builder, lost = BatchBuilder(decoding), 0
    for queue_range in ranges:
        # brokers compare hashes of tags; the tags themselves are compared after decoding
        origin, settings = Origin(queue_range.queue, queue_range.subscription.tags), queue_range.pull
        puller = RangePuller(queue_range)
        for reply, low, high in puller.answers():
            records = builder.records
            records.add(reply, low, high, origin)
            if len(records) >= settings.rows_per_batch or records.size_bytes >= settings.bytes_per_batch:
                yield builder.finish()
        lost += puller.lost
    if builder.records:
        yield builder.finish()
    return lost


class RangePuller:
    """Pulls a range over one connection at a time, directed by its plan."""

    def __init__(self, queue_range: QueueRange) -> None:
        self._range = queue_range
        self._timeout_seconds = queue_range.pull.timeout_seconds
        self._plan = RangePlan(queue_range, queue_range.access.credentials())
        self._connection: PullConnection | None = None
        self._replies: dict[int | None, RemotingCommand] = {}  # key: opaque of the pull

    @property
    def lost(self) -> int:
        """Number of messages lost so far."""
        return self._plan.lost

    def answers(self) -> Iterator[tuple[FramedReply, int, int]]:
        """Yield the responses with messages, each with its wanted offsets, from the first to before the last."""
        try:
            while self._plan.more:
                found: list[tuple[FramedReply, int, int]] = []
                try:
                    self._ask()
                    self._await_first()
                    self._settle_first_ones(found)
                    self._ask()  # the broker answers while the received messages are decoded
                except RmqdError as error:
                    self._disconnect()
                    self._plan.failed(error, time.monotonic())
                yield from found
            if self._connection is not None:
                keep_connection(self._connection)
                self._connection = None
        finally:
            self._disconnect()

    def _ask(self) -> None:
        """Pause and query the route if the plan requires it, and keep enough pulls in flight."""
        plan = self._plan
        if pause := plan.take_pause():
            time.sleep(pause)
        if plan.wants_route:
            self._disconnect()
            try:
                replicas = cluster_of(self._range.access).replicas_now(self._range.queue)
            except RmqdError as error:
                plan.learn_nothing(error)
            else:
                plan.learn(replicas)
        if plan.is_half_answered:  # send in groups, because each send wakes the broker
            while plan.extend():
                pass
        frames = [frame for _, frame in plan.requests()]
        if frames:
            if self._connection is None:
                self._connection = take_connection(plan.address, self._range.access)
            self._connection.send(frames, self._timeout_seconds)

    def _await_first(self) -> None:
        """Wait for the first span's response. Responses for other spans that arrive meanwhile are kept."""
        spans = self._plan.spans
        asked = {span.opaque for span in spans}
        while self._connection is not None and spans and spans[0].opaque not in self._replies:
            for reply in self._connection.receive(self._timeout_seconds):
                if reply.opaque in asked:
                    self._replies[reply.opaque] = reply

    def _settle_first_ones(self, found: list[tuple[FramedReply, int, int]]) -> None:
        """Settle spans in order, as far as they have responses.

        Append responses with messages to `found`, which keeps them if a later one raises.
        """
        plan = self._plan
        while plan.spans and (reply := self._replies.pop(plan.spans[0].opaque, None)) is not None:
            first = plan.spans[0].low
            framed = FramedReply(reply.payload, reply.body_start)
            decision = plan.answered(reply, framed.broken)
            if isinstance(decision, ResetByOperator):
                # the checkpoint determines the batch's range, regardless of an operator's reset
                queue, reset_to = str(self._range.queue), decision.offset
                log.warning("spark.reset_ignored", queue=queue, offset=first, reset_to=reset_to)
            elif decision is not None and decision.found:
                found.append((framed, decision.low, decision.high))

    def _disconnect(self) -> None:
        self._replies.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
