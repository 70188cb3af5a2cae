"""Requests that brokers forward from operators: the group's offsets, its running info, and direct consumption."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from rmqd.client.coalesce import Coalesced
from rmqd.client.pushed_resets import PushedResets
from rmqd.client.remoting.client import Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.admin.direct_consumption import DirectConsumption
from rmqd.consumer.admin.rates import SAMPLE_SECONDS, Rates
from rmqd.consumer.admin.running_info import running_info
from rmqd.consumer.admin.stacks import stacks
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.group_status import GroupStatus
from rmqd.consumer.rebalance.rebalance import Rebalance
from rmqd.wire.bodies.group import GetConsumerStatusBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

_SUCCESS: Final = int(ResponseCode.SUCCESS)


class OperatorRequests:
    """Answers the requests for one group. `run` samples the rates for running info."""

    def __init__(self, context: GroupContext, rebalance: Rebalance, status: GroupStatus) -> None:
        self._context = context
        self._rebalance = rebalance
        self._status = status
        self._rates = Rates(context.stats, context.clock)
        self._direct = DirectConsumption(context)
        self._started_at = context.clock.wall()
        self._resets = PushedResets()
        self._running_infos = Coalesced(self._running_info)

    async def run(self) -> None:
        """Sample the group's counters until cancelled. The end also cancels running calls for operators."""
        try:
            while True:
                await self._context.clock.sleep(SAMPLE_SECONDS)
                self._rates.sample()
                self._rates.look_at(self._pulled())
        finally:
            await self._direct.close()

    async def answer(self, command: RemotingCommand) -> Reply | None:
        """Answer one request; None if no response is expected. Raises ProtocolError for an undecodable request."""
        with structlog.contextvars.bound_contextvars(group=self._context.options.group):
            return await self._answer(command)

    async def _answer(self, command: RemotingCommand) -> Reply | None:
        match command.code:
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                await self._reset(command)
                return None
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                body = self._offsets(GetConsumerStatusRequestHeader.from_ext_fields(command.ext_fields).topic)
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                asked = GetConsumerRunningInfoRequestHeader.from_ext_fields(command.ext_fields)
                body = await self._running_infos(bool(asked.jstack_enable))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                header = ConsumeMessageDirectlyResultRequestHeader.from_ext_fields(command.ext_fields)
                body = (await self._direct.consume(command.body, header.broker_name or "")).to_json()
            case _:
                remark = f"request type {command.code} not supported"
                return (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, {}, b"")
        return (_SUCCESS, "", {}, body)

    async def _reset(self, command: RemotingCommand) -> None:
        """Reset this member's queues of a topic. All members get the same list, and each resets its own queues."""
        reset = await self._resets.read(command)
        ours = self._rebalance.move_all(reset.offsets)
        log.warning(
            "reset.pushed",
            topic=reset.topic,
            moved={str(queue): offset for queue, offset in sorted(ours.items())},
            not_ours=reset.named - len(ours),
        )

    def _offsets(self, topic: str) -> bytes:
        """Return the first unfinished offset of each queue of a topic, which may not be committed yet."""
        assigned = self._rebalance.assigned.items()
        offsets = {queue: one.commit_offset() for queue, one in assigned if queue.topic == topic}
        return GetConsumerStatusBody({queue: at for queue, at in offsets.items() if at is not None}).to_json()

    async def _running_info(self, with_stacks: bool) -> bytes:
        await asyncio.sleep(0)  # lets concurrent requests share one result
        self._rates.look_at(self._pulled())
        return running_info(
            self._context,
            self._rebalance.assigned,
            self._rates,
            self._status.state,
            self._started_at,
            stacks() if with_stacks else None,
        ).to_json()

    def _pulled(self) -> dict[MessageQueue, ProcessQueue]:
        assigned = [one for one in self._rebalance.assigned.values() if not one.is_popped]
        return {one.message_queue: process_queue for one in assigned for process_queue in one.process_queues}
