"""The pop requests of one assignment: broker, filter, and late responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.codes import RequestCode
from rmqd.consumer.options import ConsumerOptions
from rmqd.errors import BrokerAwayError
from rmqd.wire.bodies.heartbeat import SubscriptionData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop import PopMessageRequestHeader
from rmqd.wire.message_queue import MessageQueue

GRACE_SECONDS: Final = 10.0  # Java: how much longer than the hold time a response may take
TOO_LATE: Final = "timeout too much"

_FROM_FIRST: Final = 0


class PopRequest:
    """Sends the pops of a queue, or of all queues of a broker. Several may be in progress."""

    code: ClassVar[int] = int(RequestCode.POP_MESSAGE)

    def __init__(self, client: ClientInstance, message_queue: MessageQueue) -> None:
        self.under_way = 0
        self._client = client
        self._message_queue = message_queue
        self._fields: dict[str, str] = {}
        # with a born time of 0, brokers from 5.3 on use their own clock; older ones reject it as a pop from 1970
        self._tells_time = False

    def go_by(self, options: ConsumerOptions, subscription: SubscriptionData, most: int) -> None:
        """Use these options for later pops. Java: `DefaultMQPushConsumerImpl.popMessage`."""
        self._fields = PopMessageRequestHeader(
            consumer_group=options.group,
            topic=self._message_queue.topic,
            queue_id=self._message_queue.queue_id,
            max_msg_nums=most,
            invisible_time=round(options.pop_invisible_time_seconds * 1000),
            poll_time=0,
            born_time=0,
            init_mode=_FROM_FIRST,  # a new group has offsets by now, so a queue without one was created later
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=False,
            bname=self._message_queue.broker_name,
        ).ext_fields()

    async def ask(
        self, hold_ms: int, now_ms: int, came_late: Callable[[RemotingConnection, RemotingCommand], None]
    ) -> RemotingCommand:
        """Pop, and return the response, whatever its code. Raises RmqdError.

        A response after a cancellation is passed to `came_late` with its connection, because its messages are invisible
        to all members.
        """
        client, name = self._client, self._message_queue.broker_name
        address = client.routes.master(name)  # slaves cannot record which messages are invisible
        if address is None:
            raise BrokerAwayError(self._message_queue.topic, name)
        connection = await client.connection(address)
        fields = self._fields | {"pollTime": str(hold_ms), "bornTime": str(now_ms if self._tells_time else 0)}
        future = client.remoting.call(connection, self.code, fields, hold_ms / 1000 + GRACE_SECONDS)
        self.under_way += 1
        try:
            return await future
        except asyncio.CancelledError:
            connection.hand_over(future, partial(came_late, connection))
            raise
        finally:
            self.under_way -= 1

    def was_refused_as_late(self, reply: RemotingCommand) -> bool:
        """Whether the broker rejected the pop as too old. The next pop then sends the other form of born time."""
        if TOO_LATE not in (reply.remark or ""):
            return False
        self._tells_time = not self._tells_time
        return True
