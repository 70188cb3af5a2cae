"""Pulls (11, 361; `PullMessageProcessor.java`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from rmqd.broker.channel import Channel
from rmqd.broker.held_pulls import HeldPull
from rmqd.broker.reply import Answer, Processors, Refusal, Reply
from rmqd.broker.store.message_store import GetMessageStatus as Status
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.sys_flag import PullSysFlag

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController

_CODES: Final = {
    Status.FOUND: ResponseCode.SUCCESS,
    Status.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Status.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    Status.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    Status.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    Status.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


class PullMessageProcessor:
    """Gives consumers their messages."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {RequestCode.PULL_MESSAGE: self.pull}

    def pull(self, channel: Channel, request: RemotingCommand) -> Answer:
        """11: at once, or when there is a message."""
        header = PullMessageRequestHeader.from_ext_fields(request.ext_fields)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self._broker.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return self._answer(channel, request, header, may_hold=True)

    def _answer(
        self, channel: Channel, request: RemotingCommand, header: PullMessageRequestHeader, *, may_hold: bool
    ) -> Answer:
        broker = self._broker
        if broker.topics.get(header.topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
        found = broker.store.get(header.topic, header.queue_id, header.queue_offset, header.max_msg_nums)
        code = _CODES.get(found.status)
        if code is None:
            code = ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND
        if code is ResponseCode.PULL_NOT_FOUND and may_hold and header.sys_flag & PullSysFlag.SUSPEND:
            pull = HeldPull(channel, request, header.topic, header.queue_id, None, lambda: None)
            pull.again = partial(self._again, channel, request, header)
            broker.held_pulls.hold(pull, header.suspend_timeout_millis / 1000)
            return None
        fields = PullMessageResponseHeader(found.next_begin_offset, found.min_offset, found.max_offset)
        return Reply(code, found.status.value, fields.ext_fields(), b"".join(found.records))

    def _again(self, channel: Channel, request: RemotingCommand, header: PullMessageRequestHeader) -> None:
        answer = self._answer(channel, request, header, may_hold=False)
        if answer is not None:
            channel.reply(request, answer)
