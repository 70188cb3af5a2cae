"""Pops: messages that are handed out one by one (`PopMessageProcessor.java`)."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Final

from rmqd.broker.channel import Answer, Channel
from rmqd.broker.filter.lexer import ExpressionError
from rmqd.broker.filter.subscriptions import filter_of, requested_subscription
from rmqd.broker.pop.held_pops import HeldPop, Place
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.processors.pop_checks import LATE_MS, check_reading
from rmqd.broker.processors.pop_taking import Taking
from rmqd.broker.reply import Refusal, Reply, refusing_with
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import InvalidNameError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop import PopMessageRequestHeader, PopMessageResponseHeader
from rmqd.wire.pop import MAX_POP_MESSAGES, ORDER_REVIVE_QUEUE

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController
    from rmqd.broker.store.get_messages import MessageFilter

DICE: Final = 100
NOTHING_POPPED: Final = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=0).ext_fields()
"""The ext fields of refusals."""


class PopMessageProcessor(RequestProcessor):
    """Answers pops: hands messages to members, and hides these messages from other members for a while."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self._numbers = itertools.count()

    @answers(RequestCode.POP_MESSAGE)
    def pop(self, channel: Channel, request: RemotingCommand) -> Answer:
        """POP_MESSAGE (200050): answer at once, or when a message arrives."""
        header = PopMessageRequestHeader.from_ext_fields({"bornTime": "0", **request.ext_fields})
        now_ms, ip = self._broker.now_ms(), self._broker.settings.brokerIP1
        born_ms = header.born_time or now_ms
        if now_ms - born_ms - header.poll_time > LATE_MS:
            remark = f"the broker[{ip}] pop message is timeout too much"
            raise Refusal(ResponseCode.POLLING_TIMEOUT, remark, NOTHING_POPPED)
        if header.max_msg_nums > MAX_POP_MESSAGES:
            remark = f"the broker[{ip}] pop message's num is greater than 32"
            raise Refusal(ResponseCode.INVALID_PARAMETER, remark, NOTHING_POPPED)
        return self._answer(channel, request, header, born_ms + header.poll_time)

    def _answer(
        self, channel: Channel, request: RemotingCommand, header: PopMessageRequestHeader, until_ms: int
    ) -> Answer:
        broker = self._broker
        with refusing_with(NOTHING_POPPED):
            check_reading(broker, channel, header, "pop")
            wanted = self._wanted(header)
        taking = Taking(broker, header, wanted, broker.now_ms(), self._revive_queue(header))
        taking.take(random.randrange(DICE))
        place = Place(header.topic, header.consumer_group, header.queue_id)
        code: ResponseCode | None = ResponseCode.SUCCESS
        if not taking.records:
            pop = HeldPop(place, channel, request, lambda one, same: self._answer(one, same, header, until_ms), wanted)
            code = broker.held_pops.hold(pop, until_ms - taking.pop_time, header.poll_time)
        if taking.rest > 0 and header.max_msg_nums > 0 and code in (None, ResponseCode.SUCCESS):
            broker.held_pops.wake(place)  # another pop, or another queue, may have more messages
        return None if code is None else self._reply(code, taking)

    def _reply(self, code: ResponseCode, taking: Taking) -> Reply:
        header = PopMessageResponseHeader(
            pop_time=taking.pop_time,
            invisible_time=taking.header.invisible_time,
            revive_qid=taking.revive_queue_id,
            rest_num=taking.rest,
            start_offset_info=taking.start_offset_info(),
            msg_offset_info=taking.msg_offset_info(),
            order_count_info=taking.order_count_info(),
        )
        remark = "FOUND" if taking.records else "NO_MESSAGE_IN_QUEUE"
        return Reply(code, remark, header.ext_fields(), b"".join(taking.records))

    def _wanted(self, header: PopMessageRequestHeader) -> MessageFilter | None:
        """Return the filter of a pop. The pop also sets the group's subscription, without a heartbeat."""
        try:
            subscription = requested_subscription(header.topic, header.exp, header.exp_type)
            wanted = filter_of(subscription)
        except (InvalidNameError, ExpressionError):
            raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from None
        self._broker.consumers.note_popped(header.consumer_group, header.topic)
        return wanted

    def _revive_queue(self, header: PopMessageRequestHeader) -> int:
        """Return the revive queue for a pop's handles."""
        return (
            ORDER_REVIVE_QUEUE if header.order else next(self._numbers) % max(1, self._broker.settings.reviveQueueNum)
        )
