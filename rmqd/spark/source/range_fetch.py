"""Pulls ranges of queues over blocking connections, on executors of `spark.read` and `spark.readStream`.

`range_plan` chooses the pulls and interprets the responses. This module sends the pulls, waits for responses, and
builds record batches. Spark runs one reading process for each core, so an event loop in a second thread would only
compete for the core. While a batch is built, the broker's next responses arrive in the socket's buffer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import structlog
from pyspark.sql.datasource import InputPartition

from rmqd.client.client_options import TlsOptions
from rmqd.client.remoting.security import client_context, explain_tls_error
from rmqd.errors import RemotingClosedError, RemotingConnectError, RemotingTimeoutError, RmqdError
from rmqd.runtime.plain_text import duration
from rmqd.spark.session.queue_range import QueueRange, group_into_tasks, split_ranges
from rmqd.spark.session.spark_access import ClientAccess
from rmqd.spark.session.spark_cluster import SparkCluster, cluster_of
from rmqd.spark.session.spark_process import exclude_imports_from_gc, log_to_stderr
from rmqd.spark.source.arrow_columns import BatchBuilder
from rmqd.spark.source.range_plan import RangePlan, ResetByOperator
from rmqd.spark.source.source_columns import DecodingOptions
from rmqd.spark.source.source_options import SourceOptions
from rmqd.spark.source.source_records import FramedResponse, QueueOrigin
from rmqd.wire.command import FrameDecoder, RemotingCommand, decode_command
from rmqd.wire.message_queue import MessageQueue

CONNECT_TIMEOUT_SECONDS: Final = 3.0
RECEIVE_BYTES: Final = 1 << 20

_idle: dict[tuple[int, str, ClientAccess], PullConnection] = {}


class PullConnection:
    """A blocking connection to a broker. `receive` returns responses in order of arrival."""

    def __init__(self, address: str, access: ClientAccess) -> None:
        self.address = address
        self.access = access
        self._frames = FrameDecoder()
        self._socket = _connect(address, access.client_options().tls)

    def send(self, frames: list[bytes], timeout_seconds: float) -> None:
        """Send whole request frames. Raises RemotingError."""
        try:
            self._socket.settimeout(timeout_seconds)
            self._socket.sendall(b"".join(frames))
        except OSError as error:
            raise RemotingClosedError(self.address, str(error) or "the request could not be sent") from error

    def receive(self, timeout_seconds: float) -> list[RemotingCommand]:
        """Return all responses that have arrived, at least one. Raises RemotingError or ProtocolError."""
        replies: list[RemotingCommand] = []
        try:
            self._socket.settimeout(timeout_seconds)
            while not replies:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise RemotingClosedError(self.address, "the peer closed the connection")
                commands = map(decode_command, self._frames.feed(data))
                replies = [command for command in commands if command.is_response]
        except TimeoutError:
            raise RemotingTimeoutError(self.address, f"no response to a pull in {duration(timeout_seconds)}") from None
        except OSError as error:
            raise RemotingClosedError(self.address, str(error)) from error
        return replies

    def close(self) -> None:
        self._socket.close()


def _connect(address: str, tls: TlsOptions) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = client_context(tls) if tls.enabled else None
    try:
        connected = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return connected
        with contextlib.ExitStack() as unless_encrypted:
            unless_encrypted.callback(connected.close)
            encrypted = context.wrap_socket(connected, server_hostname=tls.server_name or host)
            unless_encrypted.pop_all()
        return encrypted
    except (OSError, ValueError) as error:
        reason = explain_tls_error(error, tls.server_name or host) or str(error) or type(error).__name__
        raise RemotingConnectError(address, reason) from error


def reuse_or_connect(address: str, access: ClientAccess) -> PullConnection:
    """Return the connection that an earlier task of this process kept, or a new one.

    Raises RemotingConnectError, and RmqdError for missing keys or certificates.
    """
    return _idle.pop((os.getpid(), address, access), None) or PullConnection(address, access)


def keep_for_next_task(connection: PullConnection) -> None:
    """Keep a connection open for the next task of this process. It must not have outstanding responses."""
    key = os.getpid(), connection.address, connection.access
    former = _idle.pop(key, None)
    if former is not None:
        former.close()
    _idle[key] = connection


def close_kept_connections() -> None:
    for key in [key for key in _idle if key[0] == os.getpid()]:
        _idle.pop(key).close()


log = structlog.get_logger(__name__)


def read_ranges(ranges: Sequence[QueueRange], decoding: DecodingOptions) -> Generator[pa.RecordBatch, None, int]:
    """Yield the messages of a task's ranges as record batches, one range after the other, in order of offsets.

    Return the number of lost messages. Raises DataLossError if messages are lost and a range has `fail_on_data_loss`,
    ProtocolError for contradictory offsets or (unless `decoding.is_permissive`) a corrupt message, and the last pull's
    error if no replica returns a readable response for `patience_seconds`.
    """
    log_to_stderr()
    builder, lost = BatchBuilder(decoding), 0
    for queue_range in ranges:
        # brokers compare only hashes of tags, so messages with other tags are removed after decoding
        origin, settings = QueueOrigin(queue_range.queue, queue_range.subscription.tags_set), queue_range.pull
        puller = RangePuller(queue_range)
        for reply, low, high, following in puller.responses():
            records = builder.records
            records.add(reply, low, high, origin, following)
            if len(records) >= settings.rows_per_batch or records.size_bytes >= settings.bytes_per_batch:
                yield builder.finish()
        lost += puller.plan.lost_messages
    if builder.records:
        yield builder.finish()
    return lost


class RangePuller:
    """Pulls one range over one connection at a time, as its RangePlan decides."""

    def __init__(self, queue_range: QueueRange) -> None:
        self._range = queue_range
        self._timeout_seconds = queue_range.pull.timeout_seconds
        self.plan = RangePlan(queue_range, queue_range.access.credentials())
        self._connection: PullConnection | None = None
        self._replies: dict[int | None, RemotingCommand] = {}  # responses not handled yet, by opaque of the pull

    def responses(self) -> Iterator[tuple[FramedResponse, int, int, int]]:
        """Yield each response that has messages, with the range of wanted offsets and the next begin offset."""
        try:
            while self.plan.is_unfinished:
                found: list[tuple[FramedResponse, int, int, int]] = []
                try:
                    self._ask()
                    self._await_first()
                    self._settle_first_ones(found)
                    self._ask()  # send the next pulls now: the broker answers while these messages are decoded
                except RmqdError as error:
                    self._disconnect()
                    self.plan.handle_failure(error, time.monotonic())
                yield from found
            if self._connection is not None:
                keep_for_next_task(self._connection)
                self._connection = None
        finally:
            self._disconnect()

    def _ask(self) -> None:
        """Pause and query the route if the plan requires it. Then send a pull for each span that has none in flight."""
        plan = self.plan
        if pause := plan.take_pause_seconds():
            time.sleep(pause)
        if plan.must_query_route:
            self._disconnect()
            try:
                replicas = cluster_of(self._range.access).current_replicas(self._range.queue)
            except RmqdError as error:
                plan.keep_known_replicas(error)
            else:
                plan.use_replicas(replicas)
        if plan.should_add_spans:  # send several pulls at once, because each send wakes the broker
            while plan.add_span():
                pass
        frames = [frame for _, frame in plan.new_requests()]
        if frames:
            if self._connection is None:
                self._connection = reuse_or_connect(plan.address, self._range.access)
            self._connection.send(frames, self._timeout_seconds)

    def _await_first(self) -> None:
        """Wait for the response to the first span's pull. Keep responses of other spans that arrive earlier."""
        spans = self.plan.spans
        asked = {span.opaque for span in spans}
        while self._connection is not None and spans and spans[0].opaque not in self._replies:
            for reply in self._connection.receive(self._timeout_seconds):
                if reply.opaque in asked:
                    self._replies[reply.opaque] = reply

    def _settle_first_ones(self, found: list[tuple[FramedResponse, int, int, int]]) -> None:
        """Settle spans in order, up to the first span without a response.

        Append responses with messages to `found`. If a later response raises, `found` has the earlier responses.
        """
        plan = self.plan
        while plan.spans and (reply := self._replies.pop(plan.spans[0].opaque, None)) is not None:
            first = plan.spans[0].low
            framed = FramedResponse(reply.payload, reply.body_start)
            decision = plan.handle_response(reply, framed.damage)
            if isinstance(decision, ResetByOperator):
                # the range comes from Spark's checkpoint, so an operator's reset of the group does not change it
                queue, reset_to = str(self._range.queue), decision.offset
                log.warning("spark.reset_ignored", queue=queue, offset=first, reset_to=reset_to)
            elif decision is not None and decision.has_messages:
                found.append((framed, decision.start, decision.end, plan.next_begin_offset))

    def _disconnect(self) -> None:
        self._replies.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def ranges_of(
    cluster: SparkCluster, options: SourceOptions, spans: dict[MessageQueue, tuple[int, int]]
) -> list[QueueRange]:
    """Return a range for each queue with offsets to read, sorted. `spans` has each queue's start and exclusive end."""
    return [
        QueueRange(
            queue=queue,
            start=low,
            end=high,
            access=options.access,
            replicas=cluster.known_replicas(queue),
            subscription=options.filter_of(queue.topic),
            pull=options.pull,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for queue, (low, high) in sorted(spans.items())
        if low < high
    ]


def partitions_of(options: SourceOptions, ranges: list[QueueRange]) -> list[InputPartition]:
    """Return Spark's partitions, one for each task. Usually a task reads one range of one queue."""
    most = options.max_records_per_partition
    pieces = split_ranges(ranges, options.min_partitions, most)
    return [InputPartition(task) for task in group_into_tasks(pieces, options.max_partitions, most)]


def read_partition(partition: InputPartition, decoding: DecodingOptions) -> Generator[pa.RecordBatch, None, int]:
    """Yield the record batches of a partition; none if its value is None. Return the number of lost messages."""
    if partition.value is None:
        return 0
    try:
        return (yield from read_ranges(partition.value, decoding))
    finally:
        exclude_imports_from_gc()  # after a task, all modules are imported


def check_sql_filter(cluster: SparkCluster, options: SourceOptions, queues: frozenset[MessageQueue]) -> None:
    """Raise FilterRefusedError if a broker of these queues refuses the filter in the option `sql`."""
    topics = sorted({queue.topic for queue in queues})
    cluster.check_filters(options.pull.group, [replace(options.filter_of(topic), topic=topic) for topic in topics])
