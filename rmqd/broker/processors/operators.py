"""Requests of operators to members through the broker (`Broker2Client.java`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.broker.channel import Channel
from rmqd.broker.members import ClientChannel
from rmqd.broker.mq_version import TAKES_RESETS, TELLS_OPERATORS, version_desc
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.processors.offset_admin import NOT_SET
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError, RemotingClosedError, RemotingTimeoutError
from rmqd.wire.bodies.group import GetConsumerStatusBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message_id import parse_offset_message_id

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController

log = structlog.get_logger(__name__)

STATUS_SECONDS: Final = 5.0
CALL_SECONDS: Final = 10.0


class OperatorProcessor(RequestProcessor):
    """Forwards operators' requests to members, and returns the responses. The arguments are timeouts for members."""

    def __init__(
        self, broker: BrokerController, *, status_seconds: float = STATUS_SECONDS, call_seconds: float = CALL_SECONDS
    ) -> None:
        super().__init__(broker)
        self._status_seconds = status_seconds
        self._call_seconds = call_seconds

    @answers(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    async def consumer_status(self, channel: Channel, request: RemotingCommand) -> Reply:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): members' offsets. Members that do not answer are omitted."""
        header = GetConsumerStatusRequestHeader.from_ext_fields(request.ext_fields)
        info = self._broker.consumers.get(header.group)
        if info is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        asked = []
        for client in info.channels.values():
            if client.version < TAKES_RESETS:
                remark = f"the client does not support this feature. version={version_desc(client.version)}"
                raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
            if not header.client_addr or header.client_addr == client.client_id:
                asked.append(client)
            if asked and header.client_addr:
                break
        question = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        tables = await asyncio.gather(*(self._held_offsets(client, question) for client in asked))
        told = {client.client_id: table for client, table in zip(asked, tables, strict=True) if table is not None}
        return Reply(remark=NOT_SET, body=GetConsumerStatusBody(consumer_table=told).to_json())

    @answers(RequestCode.GET_CONSUMER_RUNNING_INFO)
    async def running_info(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_CONSUMER_RUNNING_INFO (307): a member's running info."""
        header = GetConsumerRunningInfoRequestHeader.from_ext_fields(request.ext_fields)
        return await self._relay(request, header.consumer_group, header.client_id, request.ext_fields)

    @answers(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    async def consume_directly(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CONSUME_MESSAGE_DIRECTLY (309): ask a member to handle the stored message with this offset id."""
        broker = self._broker
        header = ConsumeMessageDirectlyResultRequestHeader.from_ext_fields(request.ext_fields)
        fields = {**request.ext_fields, "brokerName": broker.name}
        topic = broker.topics.get(header.topic or "")
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = broker.groups.find(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        record = broker.store.record(parse_offset_message_id(header.msg_id or "").commit_log_offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message has the offset id {header.msg_id}")
        return await self._relay(request, header.consumer_group, header.client_id or "", fields, record)

    async def _relay(
        self, request: RemotingCommand, group: str, client_id: str, fields: Mapping[str, str], body: bytes = b""
    ) -> Reply:
        """Forward a request to a member. Returns its response unchanged."""
        client = self._broker.consumers.find_client(group, client_id)
        if client is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if client.version < TELLS_OPERATORS:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{version_desc(client.version)}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        try:
            reply = await client.channel.call(request.code, fields, body, timeout_seconds=self._call_seconds)
        except (RemotingTimeoutError, RemotingClosedError) as error:  # RocketMQ also waits for a member that leaves
            remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
            raise Refusal(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from None
        return Reply(reply.code, reply.remark, reply.ext_fields, reply.body)

    async def _held_offsets(
        self, client: ClientChannel, question: GetConsumerStatusRequestHeader
    ) -> Mapping[MessageQueue, int] | None:
        try:
            reply = await client.channel.call(
                question.code, question.ext_fields(), timeout_seconds=self._status_seconds
            )
            if reply.code != ResponseCode.SUCCESS or not reply.body:
                return None
            return GetConsumerStatusBody.from_json(reply.body).message_queue_table
        except (RemotingTimeoutError, RemotingClosedError, ProtocolError) as error:
            log.warning("broker.member_silent", client_id=client.client_id, code=int(question.code), error=str(error))
            return None
