"""A producer that sends message trace of its sends, like Java's producer with enableTrace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.client.sending.trace_dispatcher import TraceDispatcher
from rmqd.codes import ResponseCode
from rmqd.wire.topics import INNER_PRODUCER_GROUP, unwrap_namespace
from rmqd.wire.trace import TRACE_PRODUCER_PREFIX, TraceMessageType, TracePart, pub_record

if TYPE_CHECKING:
    from rmqd.client.options import TraceOptions
    from rmqd.client.routing.route_table import RouteTable
    from rmqd.client.sending.outgoing_message import OutgoingMessage, SendResult
    from rmqd.client.sending.producer import Producer
    from rmqd.client.sending.queue_selector import MessageQueueSelector
    from rmqd.clock import Clock


class TracedProducer:
    """Sends with `producer`. The caller runs its `dispatcher` meanwhile, and closes it at the end."""

    def __init__(
        self, producer: Producer, routes: RouteTable, options: TraceOptions, clock: Clock, *, namespace: str
    ) -> None:
        group = f"{TRACE_PRODUCER_PREFIX}-{INNER_PRODUCER_GROUP}-PRODUCE-1"
        self.dispatcher = TraceDispatcher(producer, options, group, clock)
        self._producer = producer
        self._routes = routes
        self._namespace = namespace
        self._clock = clock

    async def send(self, message: OutgoingMessage, *, selector: MessageQueueSelector | None = None) -> SendResult:
        """Send a message like `Producer.send`, and trace it if the broker wants that."""
        began, began_ms = self._clock.monotonic(), int(self._clock.wall() * 1000)
        result = await self._producer.send(message, selector=selector)
        if result.is_traced:
            record = pub_record(
                timestamp_ms=began_ms,
                region=result.region,
                group=INNER_PRODUCER_GROUP,
                topic=unwrap_namespace(message.topic, self._namespace),
                msg_id=result.msg_id,
                tags=message.tags,
                keys=message.keys,
                store_host=self._routes.master(result.queue.broker_name) or result.queue.broker_name,
                body_length=len(message.body),
                cost_ms=int((self._clock.monotonic() - began) * 1000),
                message_type=_type_of(message),
                offset_msg_id=result.offset_msg_id,
                success=result.status == ResponseCode.SUCCESS,
            )
            self.dispatcher.append((TracePart(record, result.msg_id, message.keys),), 1)
        return result


def _type_of(message: OutgoingMessage) -> TraceMessageType:
    """Return the type that Java's producer would write: an ordered message counts as a normal one."""
    return TraceMessageType.DELAY if message.delay_level or message.is_timed else TraceMessageType.NORMAL
