"""The pop requests for a parent topic's lite topics at one broker."""

from __future__ import annotations

from typing import ClassVar

from rmqd.codes import RequestCode
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.pop.request import PopRequest
from rmqd.wire.bodies.heartbeat import SubscriptionData
from rmqd.wire.headers.lite import PopLiteMessageRequestHeader


class LitePopRequest(PopRequest):
    """Sends lite pops. They name no lite topics, because the broker knows the subscription."""

    code: ClassVar[int] = int(RequestCode.POP_LITE_MESSAGE)

    def go_by(self, options: ConsumerOptions, subscription: SubscriptionData, most: int) -> None:
        """Use these options for later pops."""
        self._fields = PopLiteMessageRequestHeader(
            client_id=self._client.client_id,
            consumer_group=options.group,
            topic=self._message_queue.topic,
            max_msg_num=most,
            invisible_time=round(options.pop_invisible_time_seconds * 1000),
            poll_time=0,
            born_time=0,
            bname=self._message_queue.broker_name,
        ).ext_fields()
