"""The pulls of one range in the handler's event loop, on the executor that handles the range.

Pulls are sent when there is room for their messages, and responses are taken in the queue's order. `range_plan` decides
what to pull and what responses mean; this module sends and waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import RemotingTimeoutError, RmqdError
from rmqd.spark.cluster import replicas_now
from rmqd.spark.source.range_plan import RangePlan, ResetByOperator
from rmqd.wire.headers.pull import PullMessageResponseHeader
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.message import MessageBlock

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.spark.queue_range import QueueRange
    from rmqd.wire.command import RemotingCommand

_PULL: Final = int(RequestCode.PULL_MESSAGE)
_FOUND: Final = int(ResponseCode.SUCCESS)


@dataclass(frozen=True, slots=True)
class Pulled:
    """A response in order: offsets from `low` to before `high` are settled; `block` has their messages, if any."""

    low: int
    high: int
    block: MessageBlock | None
    seconds: float


@dataclass(frozen=True, slots=True)
class _Pull:
    """A pull in flight."""

    asked_at: float
    reply: asyncio.Future[RemotingCommand]


OpenBodies = Callable[["MessageBlock", int], Awaitable[object]]
"""Decompresses the bodies of a response as far as there is room, starting at an offset."""


class RangePulls:
    """Pulls a range, as far ahead as the caller extends the plan."""

    def __init__(self, client: ClientInstance, queue_range: QueueRange, open_bodies: OpenBodies) -> None:
        self.plan = RangePlan(queue_range, client.remoting.security.credentials)
        self.largest_bytes = 0
        """Size of the largest response so far."""
        self._client = client
        self._open_bodies = open_bodies
        self._range = queue_range
        self._connection: RemotingConnection | None = None
        self._pulls: dict[int | None, _Pull] = {}  # key: opaque

    async def take(self) -> Pulled | ResetByOperator | None:
        """Wait for the first response and return it; None if its pull must be repeated.

        Raises DataLossError if `fail_on_data_loss` is set, and RmqdError if no replica answers for `patience_seconds`.
        """
        try:
            await self._ask()
            if not self.plan.spans:
                return None
            pull = self._pulls.pop(self.plan.spans[0].opaque)
            return await self._settle(await pull.reply, pull.asked_at)
        except RmqdError as error:
            self._disconnect(error)
            self.plan.failed(error, time.monotonic())
            return None

    async def _ask(self) -> None:
        """Pause and query the route if the plan requires it, and send a pull for every span."""
        plan, remoting, timeout_seconds = self.plan, self._client.remoting, self._range.pull.timeout_seconds
        if pause := plan.take_pause():
            await asyncio.sleep(pause)
        if plan.wants_route:
            self._pulls.clear()
            self._connection = None
            try:
                replicas = await replicas_now(self._client.routes, self._range.queue)
            except RmqdError as error:
                plan.learn_nothing(error)
            else:
                plan.learn(replicas)
        for opaque, frame in plan.requests():
            if self._connection is None or not self._connection.is_open:
                with contextlib.suppress(RmqdError):
                    await self._client.routes.lookup(self._range.topic)  # needed to send failed messages back
                self._connection = await remoting.connection(plan.address)
            reply = self._connection.call(_PULL, opaque, frame, timeout_seconds)
            self._pulls[opaque] = _Pull(time.monotonic(), reply)

    async def _settle(self, reply: RemotingCommand, asked_at: float) -> Pulled | ResetByOperator | None:
        block, cut_at = None, None
        if reply.code == _FOUND:
            namespace = self._client.options.namespace
            block = frame_messages(reply.payload, self._range.queue, reply.body_start, namespace)
            if block.is_closed and block.broken is None:
                await self._open_bodies(block, self.plan.spans[0].low)
            cut_at = block.cut_at
        decision = self.plan.answered(reply, None if block is None else block.broken, cut_at)
        if decision is None or isinstance(decision, ResetByOperator):
            return decision
        if not decision.found:
            block = None
        if block is not None:
            self.largest_bytes = max(self.largest_bytes, block.size_bytes)
            header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
            block.min_offset, block.max_offset = header.min_offset, header.max_offset
        return Pulled(decision.low, decision.high, block, time.monotonic() - asked_at)

    def _disconnect(self, error: RmqdError) -> None:
        """Pull over another connection from now on. Other users of the client may keep using this one."""
        if isinstance(error, RemotingTimeoutError) and self._connection is not None:
            self._client.remoting.leave(self._connection, "a pull was not answered")  # it may never answer again
        self._connection = None
        self._pulls.clear()
