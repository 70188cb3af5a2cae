"""What brokers ask of a group in an operator's name."""

from __future__ import annotations

from rmqd.client.remoting import Reply
from rmqd.codes import ResponseCode
from rmqd.consumer.context import GroupContext
from rmqd.consumer.group_status import GroupStatus
from rmqd.consumer.rebalance import Rebalance
from rmqd.wire.command import RemotingCommand


class OperatorRequests:
    """Answers for one group."""

    def __init__(self, context: GroupContext, rebalance: Rebalance, status: GroupStatus) -> None:
        self._context = context
        self._rebalance = rebalance
        self._status = status

    async def answer(self, command: RemotingCommand) -> Reply | None:
        """The answer to one request; None where none is wanted."""
        remark = f"request type {command.code} not supported"
        return (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, {}, b"")
