"""The pulls of one range, on an executor that handles it: several under way where their offsets are known beforehand.

Like `fetch`, for a handler's event loop: pulls leave as there is room for what they bring, and answers are taken in the
queue's order. `range_plan` decides for both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.client.remoting.connection import OPAQUE, RemotingConnection
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError, RemotingTimeoutError, RmqdError, RouteNotFoundError
from rmqd.spark.cluster import replicas_of
from rmqd.spark.source.range_plan import AskAgain, AskWhoIsMaster, Lost, RangePlan, ResetByOperator
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.messages.sys_flag import PullSysFlag

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.spark.queue_range import QueueRange
    from rmqd.wire.command import RemotingCommand

log = structlog.get_logger(__name__)

_PULL: Final = int(RequestCode.PULL_MESSAGE)
_FOUND: Final = int(ResponseCode.SUCCESS)


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


@dataclass(frozen=True, slots=True)
class _Pull:
    """A pull that is under way."""

    asked_at: float
    reply: asyncio.Future[RemotingCommand]


OpenBodies = Callable[["MessageBlock", int], Awaitable[object]]
"""Opens a reply's bodies as far as there is room, those from an offset on."""


class RangePulls:
    """Pulls a range, as far ahead as its caller lets it."""

    def __init__(self, client: ClientInstance, queue_range: QueueRange, open_bodies: OpenBodies) -> None:
        self.lost = 0
        """Offsets that the broker holds no more."""
        self.largest_bytes = 0
        """Of the answers so far."""
        self._client = client
        self._open_bodies = open_bodies
        self._range = queue_range
        self._queue = queue_range.queue
        self._settings = queue_range.pull
        self._plan: RangePlan[_Pull] = RangePlan(queue_range)
        self._template = queue_range.pull_template(client.remoting.security.credentials)
        self._connection: RemotingConnection | None = None

    @property
    def more(self) -> bool:
        """Whether a part of the range is not dealt with."""
        return self._plan.more

    @property
    def under_way(self) -> int:
        """Pulls that were asked, or are to be asked again."""
        return len(self._plan.spans)

    @property
    def awaited(self) -> int:
        """Messages that these may bring at most."""
        return sum(map(self._plan.batch_size, self._plan.spans))

    @property
    def reaches_to(self) -> int:
        """The end of what was asked for."""
        return self._plan.reaches_to

    def plan(self) -> bool:
        """Have one more pull leave with the next ones; whether there is one."""
        return self._plan.extend()

    async def take(self) -> Pulled | None:
        """The first answer, once it is there; None where it had to be asked for again.

        Raises ResetByOperatorError, DataLossError where `fail_on_data_loss` says so, and RmqdError where no replica
        answers for `patience_seconds`.
        """
        try:
            await self._ask()
            span = self._plan.spans[0]
            assert span.pull is not None
            reply, asked_at = await span.pull.reply, span.pull.asked_at
            span.pull = None
            return await self._settle(reply, asked_at)
        except RmqdError as error:
            if not self._plan.may_pass(error):
                raise
            return await self._failed(error)

    def close(self) -> None:
        """What is under way is nobody's any more."""
        self._forget_replies()
        self._plan.spans.clear()

    async def _ask(self) -> None:
        """Have a pull under way for every span."""
        if self._connection is None or not self._connection.is_open:
            self._forget_replies()
            self._connection = await self._connect()
        for span in self._plan.spans:
            if span.pull is None:
                opaque = next(OPAQUE) & 0x7FFFFFFF
                most = self._plan.batch_size(span)
                frame = self._template.frame(opaque, span.low, 0, PullSysFlag.SUBSCRIPTION, 0, 0, most)
                now = time.monotonic()
                span.pull = _Pull(now, self._connection.call(_PULL, opaque, frame, self._settings.timeout_seconds))

    async def _settle(self, reply: RemotingCommand, asked_at: float) -> Pulled | None:
        # decoded before the plan takes the span for dealt with: bytes that are no messages are asked for again
        block = await self._decoded(reply) if reply.code == _FOUND else None
        decision = self._plan.answered(reply, None if block is None else block.cut_at)
        if isinstance(decision, ResetByOperator):
            raise ResetByOperatorError(decision.offset)
        if isinstance(decision, AskAgain):
            await asyncio.sleep(decision.pause_seconds)
            return None
        if isinstance(decision, AskWhoIsMaster):
            self._connection = None
            self._forget_replies()
            await self._client.routes.refresh(self._queue.topic)
            self._plan.confirm(replicas_of(self._client.routes, self._queue))
            return None
        if isinstance(decision, Lost):
            return self._leave_out(decision)
        if block is not None:
            self.largest_bytes = max(self.largest_bytes, block.size_bytes)
        return Pulled(decision.low, decision.high, block, time.monotonic() - asked_at)

    async def _decoded(self, reply: RemotingCommand) -> MessageBlock:
        block = frame_messages(reply.payload, self._queue, reply.body_start, self._client.options.namespace)
        if block.broken is not None:
            raise ProtocolError(block.broken)
        if block.is_closed:
            await self._open_bodies(block, self._plan.spans[0].low)
        return block

    def _leave_out(self, lost: Lost) -> Pulled:
        skipped = lost.high - lost.low
        log.warning("spark.data_loss", queue=str(self._queue), first=lost.low, skipped=skipped, held=lost.held)
        self.lost += skipped
        return Pulled(lost.low, lost.high, None, 0.0)

    async def _failed(self, error: RmqdError) -> Pulled | None:
        """Turn to the next replica after a pause, or give up."""
        if isinstance(error, ProtocolError) and self._connection is not None:
            self._connection.corrupt(error)
        if isinstance(error, RemotingTimeoutError) and self._connection is not None:
            self._client.remoting.leave(self._connection, "a pull was not answered")  # it may never be again
        self._connection = None
        self._forget_replies()
        pause = self._plan.failed(time.monotonic())
        if pause is None:
            if not await self._is_gone():
                raise error
            return self._leave_out(self._plan.lose_rest())
        log.warning("spark.pull_failed", queue=str(self._queue), error=str(error))
        await asyncio.sleep(pause)
        return None

    async def _is_gone(self) -> bool:
        """Whether a name server says that nobody has the queue."""
        try:
            route = await self._client.routes.refresh(self._queue.topic)
        except RmqdError as error:
            return isinstance(error, RouteNotFoundError)
        return all(broker.broker_name != self._queue.broker_name for broker in route.broker_datas)

    async def _connect(self) -> RemotingConnection:
        routes = self._client.routes
        # where the name server does not answer, what is known of the broker may still hold
        try:
            await (routes.refresh if self._plan.is_failing else routes.lookup)(self._queue.topic)
        except RmqdError:
            if self._plan.replica is None and self._queue.broker_name not in routes.brokers():
                raise
        self._plan.learn(replicas_of(routes, self._queue))
        replica = self._plan.replica
        if replica is None:
            missing = f"no address is known for broker {self._queue.broker_name}"
            raise RouteNotFoundError(self._queue.topic, missing)
        remoting = self._client.remoting
        return remoting.connected(replica.address) or await remoting.connection(replica.address)

    def _forget_replies(self) -> None:
        """Let replies come that nobody waits for: their failures are not to be reported as never retrieved."""
        for span in self._plan.spans:
            if span.pull is not None:
                span.pull.reply.add_done_callback(lambda done: done.cancelled() or done.exception())
                span.pull = None
