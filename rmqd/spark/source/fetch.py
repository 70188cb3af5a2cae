"""Reads one queue's range on an executor: pulls at offsets that are known beforehand, several of them under way.

`range_plan` decides what is asked for and what answers mean; this asks, waits and hands messages on, blocking.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from rmqd.errors import ProtocolError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.spark.cluster import cluster_of
from rmqd.spark.process_log import log_to_stderr
from rmqd.spark.source.arrow import BatchBuilder
from rmqd.spark.source.pull_connection import PullConnection, keep_connection, next_opaque, take_connection
from rmqd.spark.source.range_plan import AskAgain, AskWhoIsMaster, Dealt, Lost, RangePlan
from rmqd.wire.bodies.heartbeat import EXPRESSION_TAG
from rmqd.wire.filter import tag_subscription
from rmqd.wire.messages.sys_flag import PullSysFlag

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from rmqd.spark.queue_range import QueueRange
    from rmqd.wire.command import RemotingCommand

log = structlog.get_logger(__name__)


def read_range(queue_range: QueueRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The messages of a range as record batches of `columns`, in the queue's order.

    Raises DataLossError where the broker no longer has all of them and that is to fail, ProtocolError for a message
    that is corrupt unless the range is permissive, and RemotingError or BrokerError where no replica answers for
    `patience_seconds`.
    """
    log_to_stderr()
    puller = RangePuller(queue_range)
    builder = BatchBuilder(columns, queue_range.queue, tags=puller.tags, permissive=queue_range.permissive)
    settings = queue_range.pull
    try:
        for reply, low, high in puller.answers():
            builder.records.add(reply.payload, reply.body_start, low, high)
            records = builder.records
            if len(records) >= settings.rows_per_batch or records.size_bytes >= settings.bytes_per_batch:
                yield builder.finish()
        if builder.records:
            yield builder.finish()
    except ProtocolError as error:
        raise ProtocolError(f"{queue_range.queue}: {error}") from error


@dataclass(slots=True)
class _Pull:
    """A pull that is under way, and its answer once that is there."""

    opaque: int
    reply: RemotingCommand | None = None


class RangePuller:
    """Pulls a range over one connection at a time."""

    def __init__(self, queue_range: QueueRange) -> None:
        self._range = queue_range
        self._settings = queue_range.pull
        self._queue = queue_range.queue
        self._plan: RangePlan[_Pull] = RangePlan(queue_range)
        filters = queue_range.subscription
        by_tag = filters.kind == EXPRESSION_TAG
        subscription = tag_subscription(self._queue.topic, filters.expression, 0) if by_tag else None
        # brokers compare hashes of tags; the tags themselves are compared when all is decoded
        self.tags = frozenset(subscription.tags_set if subscription else ())
        self._template = queue_range.pull_template(queue_range.access.credentials())
        self._connection: PullConnection | None = None

    def answers(self) -> Iterator[tuple[RemotingCommand, int, int]]:
        """The answers that have messages, each with the offsets of which they are to be taken, the last exclusive."""
        try:
            while self._plan.more:
                found: list[tuple[RemotingCommand, int, int]] = []
                try:
                    self._await_first()
                    self._settle_first_ones(found)
                    self._ask()  # before what came is decoded: the broker answers meanwhile
                except RmqdError as error:
                    self._failed(error)
                yield from found
            if self._connection is not None:
                keep_connection(self._connection)
                self._connection = None
        finally:
            self._disconnect()

    def _await_first(self) -> None:
        """Have the first span's answer; what comes meanwhile, and is there already, is kept for the others."""
        if self._connection is None:
            self._connection = self._connect()
        self._ask()
        pulls = [span.pull for span in self._plan.spans if span.pull is not None]
        asked = {pull.opaque: pull for pull in pulls}
        while pulls[0].reply is None:
            for reply in self._connection.receive(self._settings.timeout_seconds):
                if reply.opaque in asked:
                    asked[reply.opaque].reply = reply

    def _settle_first_ones(self, found: list[tuple[RemotingCommand, int, int]]) -> None:
        """Settle spans in their order, as far as they have answers.

        Answers with messages go to `found`, which keeps those that came before one that raises.
        """
        spans = self._plan.spans
        while spans and (pull := spans[0].pull) is not None and (reply := pull.reply) is not None:
            spans[0].pull = None
            first = spans[0].low
            decision = self._plan.answered(reply)
            if isinstance(decision, Dealt):
                if decision.found:
                    found.append((reply, decision.low, decision.high))
            elif isinstance(decision, Lost):
                self._tell_loss(decision)
            elif isinstance(decision, AskAgain):
                time.sleep(decision.pause_seconds)
            elif isinstance(decision, AskWhoIsMaster):
                self._disconnect()
                self._plan.confirm(cluster_of(self._range.access).replicas_now(self._queue))
            else:  # the batch has the range that the checkpoint says; who moves the group there is not asked here
                log.warning("spark.reset_ignored", queue=str(self._queue), offset=first, reset_to=decision.offset)

    def _ask(self) -> None:
        """Have pulls under way, as many as there may be."""
        while self._plan.extend():
            pass
        if self._connection is None:
            return
        frames = []
        for span in self._plan.spans:
            if span.pull is None:
                span.pull = _Pull(next_opaque())
                most = self._plan.batch_size(span)
                frames.append(self._template.frame(span.pull.opaque, span.low, 0, PullSysFlag.SUBSCRIPTION, 0, 0, most))
        if frames:
            self._connection.send(frames, self._settings.timeout_seconds)

    def _tell_loss(self, lost: Lost) -> None:
        skipped = lost.high - lost.low
        log.warning("spark.data_loss", queue=str(self._queue), first=lost.low, skipped=skipped, held=lost.held)

    def _failed(self, error: RmqdError) -> None:
        """Turn to the next replica after a pause, or give up."""
        if not self._plan.may_pass(error):
            raise error
        self._disconnect()
        pause = self._plan.failed(time.monotonic())
        if pause is None:
            if not self._is_gone():
                raise error
            self._tell_loss(self._plan.lose_rest())
            return
        log.warning("spark.pull_failed", queue=str(self._queue), error=str(error))
        time.sleep(pause)

    def _connect(self) -> PullConnection:
        if self._plan.replica is None or self._plan.is_failing:
            self._look_up()
        replica = self._plan.replica
        if replica is None:
            missing = f"no address is known for broker {self._queue.broker_name}"
            raise RemotingError(self._range.access.nameserver, missing)
        return take_connection(replica.address, self._range.access)

    def _look_up(self) -> None:
        """Ask a name server where the broker is now; what is known stays where none answers."""
        try:
            self._plan.learn(cluster_of(self._range.access).replicas_now(self._queue))
        except RmqdError as error:
            if self._plan.replica is None:
                raise RemotingError(self._range.access.nameserver, str(error)) from error

    def _is_gone(self) -> bool:
        """Whether a name server says that nobody has the queue."""
        try:
            return not cluster_of(self._range.access).replicas_now(self._queue)
        except RmqdError as error:
            return isinstance(error, RouteNotFoundError)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
