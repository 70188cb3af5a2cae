"""Messages from producers (10, 310, 320; `SendMessageProcessor.java`)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from rmqd.broker.channel import Channel
from rmqd.broker.reply import Processors, Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rmqd.wire.message_encode import StoredMessage
from rmqd.wire.message_id import offset_message_id, parse_host
from rmqd.wire.properties import parse_properties

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class SendMessageProcessor:
    """Stores messages."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker
        self._store_host = parse_host(broker.address)

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {RequestCode.SEND_MESSAGE_V2: self.send}

    def send(self, channel: Channel, request: RemotingCommand) -> Reply:
        """310."""
        broker = self._broker
        header = SendMessageRequestHeaderV2.from_ext_fields(request.ext_fields)
        config = broker.topics.create_in_send(header.topic, header.default_topic, header.default_topic_queue_nums)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
        queue_id = header.queue_id if header.queue_id >= 0 else random.randrange(config.write_queue_nums)
        stored = broker.store.put(
            StoredMessage(
                topic=header.topic,
                body=request.body,
                queue_id=queue_id,
                flag=header.flag,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=channel.address,
                properties=parse_properties(header.properties or ""),
            )
        )
        reply = SendMessageResponseHeader(
            msg_id=offset_message_id(self._store_host, stored.commit_log_offset),
            queue_id=queue_id,
            queue_offset=stored.queue_offset,
        )
        return Reply(ext_fields=reply.ext_fields())
