"""The pulls of one range, on an executor that handles it: several under way where their offsets are known beforehand.

Like `fetch`, for a handler's event loop: pulls leave as there is room for what they bring, and answers are taken in the
queue's order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.client.connection import OPAQUE, RemotingConnection
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.pull_request import OPERATOR_RESET
from rmqd.errors import BrokerError, DataLossError, ProtocolError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.spark.source.queue_range import EMPTY_ANSWERS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from rmqd.wire.headers.pull import PullMessageResponseHeader
from rmqd.wire.message import MessageBlock
from rmqd.wire.message_decode import decode_messages
from rmqd.wire.sys_flag import PullSysFlag

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.spark.source.queue_range import QueueRange
    from rmqd.wire.command import RemotingCommand

log = structlog.get_logger(__name__)

_PULL: Final = int(RequestCode.PULL_MESSAGE)
_FOUND: Final = int(ResponseCode.SUCCESS)
_NOTHING: Final = (int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY))
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)


class ResetByOperatorError(Exception):
    """An operator reset the group: the queue goes on at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Pulled:
    """An answer in its turn: offsets from `low` to before `high` are dealt with; `block` has their messages, if any."""

    low: int
    high: int
    block: MessageBlock | None
    seconds: float


class _Span:
    """A part of the range, from `low` to before `high`, that one pull at a time is to bring."""

    __slots__ = ("asked_at", "high", "low", "reply")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.asked_at = 0.0
        self.reply: asyncio.Future[RemotingCommand] | None = None


class RangePulls:
    """Pulls a range in spans as long as the broker's answers are; one at a time where the broker filters."""

    def __init__(self, client: ClientInstance, queue_range: QueueRange) -> None:
        self.lost = 0
        """Offsets that the broker holds no more."""
        self.largest_bytes = 0
        """Of the answers so far."""
        self._client = client
        self._range = queue_range
        self._queue = queue_range.queue
        self._settings = queue_range.pull
        self._spans: deque[_Span] = deque()
        self._planned = queue_range.start
        self._stride = self._settings.batch_size
        filters = queue_range.subscription
        self._one_by_one = not filters.takes_all or self._settings.in_flight == 1
        self._template = queue_range.pull_template(client.remoting.security.credentials)
        self._connection: RemotingConnection | None = None
        self._replica = 0  # which of the broker's addresses is asked
        self._empty_answers = 0
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def more(self) -> bool:
        """Whether a part of the range is not dealt with."""
        return self._planned < self._range.end or bool(self._spans)

    @property
    def under_way(self) -> int:
        """Pulls that were asked, or are to be asked again."""
        return len(self._spans)

    @property
    def awaited(self) -> int:
        """Messages that these may bring at most."""
        return sum(min(span.high - span.low, self._settings.batch_size) for span in self._spans)

    @property
    def reaches_to(self) -> int:
        """The end of what was asked for."""
        return self._planned

    def plan(self) -> bool:
        """Have one more pull leave with the next ones; whether there is one."""
        most = 1 if self._one_by_one else self._settings.in_flight
        if len(self._spans) >= most or self._planned >= self._range.end:
            return False
        high = self._range.end if self._one_by_one else min(self._planned + self._stride, self._range.end)
        self._spans.append(_Span(self._planned, high))
        self._planned = high
        return True

    async def take(self) -> Pulled | None:
        """The first answer, once it is there; None where it had to be asked for again.

        Raises ResetByOperatorError, DataLossError where `fail_on_data_loss` says so, and RmqdError where no replica
        answers for `patience_seconds`.
        """
        span = self._spans[0]
        try:
            await self._ask()
            assert span.reply is not None
            reply = await span.reply
            span.reply = None
            return await self._settle(span, reply)
        except (RemotingError, RouteNotFoundError, ProtocolError) as error:
            return await self._failed(error)
        except BrokerError as error:
            if not (error.retriable or error.stale_route):
                raise
            return await self._failed(error)

    def close(self) -> None:
        """What is under way is nobody's any more."""
        for span in self._spans:
            _forget(span.reply)
        self._spans.clear()

    async def _ask(self) -> None:
        """Have a pull under way for every span."""
        if self._connection is None or not self._connection.is_open:
            self._lose_replies()
            self._connection = await self._connect()
        for span in self._spans:
            if span.reply is None:
                opaque = next(OPAQUE) & 0x7FFFFFFF
                most = min(self._settings.batch_size, span.high - span.low)
                frame = self._template.frame(opaque, span.low, 0, PullSysFlag.SUBSCRIPTION, 0, 0, most)
                span.asked_at = time.monotonic()
                span.reply = self._connection.call(_PULL, opaque, frame, self._settings.timeout_seconds)

    async def _settle(self, span: _Span, reply: RemotingCommand) -> Pulled | None:
        """See what an answer brings: the span ends, or begins later and is pulled again."""
        if reply.code != _FOUND and reply.code not in _NOTHING and reply.code != _MOVED:
            raise BrokerError.of(reply.code, reply.remark, self._queue.broker_name)
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        low, following = span.low, min(header.next_begin_offset, span.high)
        if reply.code == _MOVED:
            if reply.remark == OPERATOR_RESET:
                raise ResetByOperatorError(header.next_begin_offset)
            return self._moved(span, header)
        if following <= low:
            return await self._nothing(span, header)
        block = None
        if reply.code == _FOUND:
            namespace = self._client.options.namespace
            block = decode_messages(reply.payload, self._queue, reply.body_start, namespace)
        self._recovered()
        if not self._one_by_one:
            is_full = following >= span.high
            self._stride = min(2 * self._stride, self._settings.batch_size) if is_full else max(1, following - low)
        if block is not None:
            self.largest_bytes = max(self.largest_bytes, block.size_bytes)
        return self._go_on(span, following, block)

    def _go_on(self, span: _Span, offset: int, block: MessageBlock | None = None) -> Pulled:
        pulled = Pulled(span.low, offset, block, time.monotonic() - span.asked_at)
        if offset >= span.high:
            self._spans.popleft()
        else:
            span.low = offset
        return pulled

    def _moved(self, span: _Span, header: PullMessageResponseHeader) -> Pulled | None:
        """The broker does not have the offset."""
        if self._replica:
            raise RemotingError(self._queue.broker_name, "a replica does not have the offset; the others are asked")
        later = min(header.next_begin_offset, span.high)
        return self._lose(span, later if later > span.low else span.high, header)

    async def _nothing(self, span: _Span, header: PullMessageResponseHeader) -> Pulled | None:
        """Nothing is there yet, although the range says that something was."""
        self._empty_answers += 1
        if self._empty_answers < EMPTY_ANSWERS:
            await asyncio.sleep(self._pause)
            return None
        return self._lose(span, span.high, header)

    def _lose(self, span: _Span, until: int, header: PullMessageResponseHeader | None) -> Pulled:
        """Leave out what the broker holds no more; without a header there is no such broker."""
        held = (header.min_offset, header.max_offset) if header is not None else None
        if self._range.fail_on_data_loss:
            raise DataLossError(self._queue, (span.low, self._range.end if until == span.high else until), held)
        log.warning("spark.data_loss", queue=str(self._queue), first=span.low, skipped=until - span.low, held=held)
        self._recovered()
        self.lost += until - span.low
        return self._go_on(span, until)

    async def _failed(self, error: RmqdError) -> Pulled | None:
        """Ask the next replica after a pause, or give up."""
        if isinstance(error, ProtocolError) and self._connection is not None:
            self._connection.corrupt(error)
        self._connection = None
        self._lose_replies()
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._settings.patience_seconds:
            if not await self._is_gone():
                raise error
            self._planned = self._range.end
            while len(self._spans) > 1:
                self._spans.pop()
            self._spans[0].high = self._range.end
            return self._lose(self._spans[0], self._range.end, None)
        log.warning("spark.pull_failed", queue=str(self._queue), error=str(error))
        self._replica += 1
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return None

    async def _is_gone(self) -> bool:
        """Whether a name server says that nobody has the queue."""
        try:
            route = await self._client.routes.refresh(self._queue.topic)
        except RmqdError as error:
            return isinstance(error, RouteNotFoundError)
        return all(broker.broker_name != self._queue.broker_name for broker in route.broker_datas)

    def _recovered(self) -> None:
        self._failing_since = None
        self._empty_answers = 0
        self._pause = FIRST_PAUSE_SECONDS

    async def _connect(self) -> RemotingConnection:
        routes = self._client.routes
        # where the name server does not answer, what is known of the broker may still hold
        try:
            await (routes.lookup if self._failing_since is None else routes.refresh)(self._queue.topic)
        except RmqdError:
            if self._queue.broker_name not in routes.brokers():
                raise
        addresses = list(routes.brokers().get(self._queue.broker_name, {}).values())
        if not addresses:
            missing = f"no address is known for broker {self._queue.broker_name}"
            raise RouteNotFoundError(self._queue.topic, missing)
        self._replica %= len(addresses)
        address = addresses[self._replica]
        return self._client.remoting.connected(address) or await self._client.remoting.connection(address)

    def _lose_replies(self) -> None:
        for span in self._spans:
            _forget(span.reply)
            span.reply = None


def _forget(reply: asyncio.Future[RemotingCommand] | None) -> None:
    """Let a reply come that nobody waits for: its failure is not to be reported as never retrieved."""
    if reply is not None:
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
