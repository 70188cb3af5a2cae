"""Reads one queue's range on an executor: pulls at offsets that are known beforehand, several of them under way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.codes import ResponseCode
from rmqd.consumer.pull_request import OPERATOR_RESET
from rmqd.errors import BrokerError, DataLossError, ProtocolError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.spark.cluster import cluster_of
from rmqd.spark.process_log import log_to_stderr
from rmqd.spark.source.arrow import BatchBuilder
from rmqd.spark.source.pull_connection import PullConnection, keep_connection, next_opaque, take_connection
from rmqd.spark.source.queue_range import EMPTY_ANSWERS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from rmqd.wire.filter import tag_subscription
from rmqd.wire.headers.pull import PullMessageResponseHeader
from rmqd.wire.heartbeat import EXPRESSION_TAG
from rmqd.wire.sys_flag import PullSysFlag

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from rmqd.spark.source.queue_range import QueueRange
    from rmqd.wire.command import RemotingCommand

log = structlog.get_logger(__name__)

_FOUND: Final = int(ResponseCode.SUCCESS)
_NOTHING: Final = int(ResponseCode.PULL_NOT_FOUND)
_AGAIN: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)


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


class _Span:
    """A part of the range, from `low` to before `high`, that one pull at a time is to bring."""

    __slots__ = ("high", "low", "opaque", "reply")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.opaque = -1
        self.reply: RemotingCommand | None = None


class RangePuller:
    """Pulls a range in spans as long as the broker's answers are. What is filtered has one pull under way only:
    where its answer ends is not known beforehand."""

    def __init__(self, queue_range: QueueRange) -> None:
        self._range = queue_range
        self._settings = queue_range.pull
        self._queue = queue_range.queue
        self._addresses = list(queue_range.addresses)
        self._spans: deque[_Span] = deque()
        self._planned = queue_range.start
        self._stride = queue_range.pull.batch_size
        filters = queue_range.subscription
        self._one_by_one = not filters.takes_all
        subscription = tag_subscription(self._queue.topic, filters.expression, 0) if self._by_tag else None
        # brokers compare hashes of tags; the tags themselves are compared when all is decoded
        self.tags = frozenset(subscription.tags_set if subscription else ())
        self._template = queue_range.pull_template(queue_range.access.credentials())
        self._connection: PullConnection | None = None
        self._empty_answers = 0
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def _by_tag(self) -> bool:
        return self._range.subscription.kind == EXPRESSION_TAG

    def answers(self) -> Iterator[tuple[RemotingCommand, int, int]]:
        """The answers that have messages, each with the offsets of which they are to be taken, the last exclusive."""
        try:
            while self._planned < self._range.end or self._spans:
                try:
                    self._await_first()
                except (RemotingError, ProtocolError) as error:
                    self._failed(error)
                    continue
                found = list(self._settle_first_ones())
                try:
                    self._plan()  # before what came is decoded: the broker answers meanwhile
                except RemotingError as error:
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
            for span in self._spans:
                span.opaque, span.reply = -1, None
        self._plan()
        asked = {span.opaque: span for span in self._spans}
        while self._spans[0].reply is None:
            for reply in self._connection.receive(self._settings.timeout_seconds):
                if reply.opaque in asked:
                    asked[reply.opaque].reply = reply

    def _settle_first_ones(self) -> Iterator[tuple[RemotingCommand, int, int]]:
        """Settle spans in their order, as far as they have answers: those with messages, and the offsets of these."""
        while self._spans and (reply := self._spans[0].reply) is not None:
            span = self._spans[0]
            span.reply = None
            found = self._settle(span, reply)
            if found is not None:
                yield reply, *found

    def _plan(self) -> None:
        """Have pulls under way, as many as there may be."""
        most = 1 if self._one_by_one else self._settings.in_flight
        while len(self._spans) < most and self._planned < self._range.end:
            high = self._range.end if self._one_by_one else min(self._planned + self._stride, self._range.end)
            self._spans.append(_Span(self._planned, high))
            self._planned = high
        if self._connection is None:
            return
        frames = []
        for span in self._spans:
            if span.opaque < 0:
                span.opaque = next_opaque()
                most = min(self._settings.batch_size, span.high - span.low)
                frames.append(self._template.frame(span.opaque, span.low, 0, PullSysFlag.SUBSCRIPTION, 0, 0, most))
        if frames:
            self._connection.send(frames, self._settings.timeout_seconds)

    def _settle(self, span: _Span, reply: RemotingCommand) -> tuple[int, int] | None:
        """See what an answer brings: the span ends, or begins later and is pulled again.

        Returns the offsets of which the answer has messages, the last exclusive; None where it has none.
        """
        span.opaque = -1
        if reply.code not in (_FOUND, _NOTHING, _AGAIN, _MOVED):
            self._refused(BrokerError.of(reply.code, reply.remark, self._connected_to()))
            return None
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        low, following = span.low, header.next_begin_offset
        if reply.code == _MOVED:
            self._moved(span, header, reply.remark or "")
            return None
        if following <= low:
            self._nothing(span, header)
            return None
        self._recovered()
        high = span.high
        if not self._one_by_one:
            full = following >= span.high
            self._stride = min(2 * self._stride, self._settings.batch_size) if full else max(1, following - low)
        self._go_on(span, following)
        return (low, high) if reply.code == _FOUND else None

    def _go_on(self, span: _Span, offset: int) -> None:
        if offset >= span.high:
            self._spans.popleft()
        else:
            span.low = offset

    def _moved(self, span: _Span, header: PullMessageResponseHeader, remark: str) -> None:
        """The broker does not have the offset, or tells once that an operator reset the group."""
        if remark == OPERATOR_RESET:
            log.warning("spark.reset_ignored", queue=str(self._queue), offset=span.low, reset_to=header[0])
            return
        held = header.min_offset, header.max_offset
        if header.next_begin_offset > span.low:
            self._lost(span, min(header.next_begin_offset, span.high), held)
        else:
            self._lost(span, span.high, held)

    def _nothing(self, span: _Span, header: PullMessageResponseHeader) -> None:
        """Nothing is there yet, although the range says that something was."""
        self._empty_answers += 1
        if self._empty_answers < EMPTY_ANSWERS:
            time.sleep(self._pause)
        else:
            self._lost(span, span.high, (header.min_offset, header.max_offset))

    def _lost(self, span: _Span, until: int, held: tuple[int, int]) -> None:
        if self._range.fail_on_data_loss:
            raise DataLossError(self._queue, (span.low, self._range.end if until == span.high else until), held)
        log.warning("spark.data_loss", queue=str(self._queue), first=span.low, skipped=until - span.low, held=held)
        self._recovered()
        self._go_on(span, until)

    def _all_lost(self) -> None:
        """The broker, or the topic on it, was taken away with what was still to be read."""
        first = self._spans[0].low if self._spans else self._planned
        if self._range.fail_on_data_loss:
            raise DataLossError(self._queue, (first, self._range.end), None)
        log.warning("spark.data_loss", queue=str(self._queue), first=first, skipped=self._range.end - first, held=None)
        self._spans.clear()
        self._planned = self._range.end

    def _refused(self, error: BrokerError) -> None:
        if not (error.retriable or error.stale_route):
            raise error
        self._failed(error)

    def _failed(self, error: RmqdError) -> None:
        """Try the next replica after a pause, or give up."""
        self._disconnect()
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._settings.patience_seconds:
            if not self._is_gone():
                raise error
            self._all_lost()
            return
        log.warning("spark.pull_failed", queue=str(self._queue), error=str(error))
        if self._addresses:
            self._addresses.append(self._addresses.pop(0))
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _recovered(self) -> None:
        self._failing_since = None
        self._empty_answers = 0
        self._pause = FIRST_PAUSE_SECONDS

    def _connect(self) -> PullConnection:
        if not self._addresses or self._failing_since is not None:
            self._look_up()
        return take_connection(self._addresses[0], self._range.access)

    def _look_up(self) -> None:
        """Ask a name server where the broker is now; what is known stays where none answers."""
        try:
            found = cluster_of(self._range.access).addresses_now(self._queue)
        except RouteNotFoundError:
            found = ()
        except RmqdError as error:
            if not self._addresses:
                raise RemotingError(self._range.access.nameserver, str(error)) from error
            return
        if found:
            self._addresses = [address for address in self._addresses if address in found]
            self._addresses += [address for address in found if address not in self._addresses]
        if not self._addresses:
            missing = RouteNotFoundError(self._queue.topic, f"no address is known for broker {self._queue.broker_name}")
            raise RemotingError(self._range.access.nameserver, str(missing))

    def _is_gone(self) -> bool:
        """Whether a name server says that nobody has the queue."""
        try:
            return not cluster_of(self._range.access).addresses_now(self._queue)
        except RmqdError as error:
            return isinstance(error, RouteNotFoundError)

    def _connected_to(self) -> str:
        return self._connection.address if self._connection is not None else self._queue.broker_name

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
