"""Headers of POP: pops, acknowledgements, changed invisible times, peeks, waiting pops, and lite topics.

A popped message is hidden from other members for its invisible time. Times are milliseconds, by the sender's clock.
QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE and BATCH_ACK_MESSAGE have no header, only a body. Lite topics: RIP-83,
RocketMQ 5.5.
"""

from __future__ import annotations

from rmqd.codes import RequestCode
from rmqd.wire.headers.request_header import Header, RequestHeader
from rmqd.wire.receipt_handle import PopHandle, RetryFlag


class PopMessageRequestHeader(RequestHeader, code=RequestCode.POP_MESSAGE):
    """Pops messages of one queue (`queue_id` -1: any queue of the topic), and hides them for `invisible_time`.

    `poll_time` is how long the broker may wait for messages. `init_mode` is a new group's start offset (0: first, 1:
    last). If the response may be lost, a member of an orderly group repeats the pop with the same `attempt_id`.
    """

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageResponseHeader(Header):
    """The response to a pop. `rmqd.wire.receipt_handle` parses the `..._info` fields: messages' offsets and counts."""

    pop_time: int
    invisible_time: int
    revive_qid: int
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None

    def handle(
        self, retry: RetryFlag, broker_name: str, queue_id: int, *, start_offset: int, queue_offset: int
    ) -> PopHandle:
        """Return the handle of the popped message at `queue_offset`."""
        times = self.pop_time, self.invisible_time
        return PopHandle(start_offset, *times, self.revive_qid, retry, broker_name, queue_id, queue_offset)


class AckMessageRequestHeader(RequestHeader, code=RequestCode.ACK_MESSAGE):
    """Acknowledges one popped message. `topic`, which stores it, may be a retry topic. `extra_info` is its handle.

    If `lite_topic` is set, `topic` is the parent topic, and `offset` is the offset in the lite topic's queue.
    """

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(RequestHeader, code=RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
    """Hides a popped message for `invisible_time` from now on. The handle in `extra_info` becomes invalid.

    `topic`, `lite_topic` and `offset` have the same meaning as in AckMessageRequestHeader.
    """

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int
    lite_topic: str | None = None
    suspend: bool | None = None


class ChangeInvisibleTimeResponseHeader(Header):
    """The response to CHANGE_MESSAGE_INVISIBLETIME: the parts of the message's new handle that changed."""

    pop_time: int
    invisible_time: int
    revive_qid: int


class PeekMessageRequestHeader(RequestHeader, code=RequestCode.PEEK_MESSAGE):
    """Asks for messages like a pop, but does not hide them from other members."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int


class NotificationRequestHeader(RequestHeader, code=RequestCode.NOTIFICATION):
    """Asks whether there is a message to pop. The broker waits up to `poll_time` for a message."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: int
    born_time: int
    order: bool | None = None
    attempt_id: str | None = None


class PollingInfoRequestHeader(RequestHeader, code=RequestCode.POLLING_INFO):
    """Asks for the number of pops of a queue that the broker holds until a message arrives."""

    consumer_group: str
    topic: str
    queue_id: int


class PopLiteMessageRequestHeader(RequestHeader, code=RequestCode.POP_LITE_MESSAGE):
    """Pops messages of any lite topic that the client is subscribed to. `topic` is the parent topic.

    If `born_time` is 0, the broker uses its own clock.
    """

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: int
    invisible_time: int
    poll_time: int
    born_time: int
    attempt_id: str | None = None


class PopLiteMessageResponseHeader(Header):
    """The response to a lite pop. `rmqd.wire.lite_topic.parse_pop_counts` parses `order_count_info`."""

    pop_time: int
    invisible_time: int
    revive_qid: int
    order_count_info: str | None = None


class NotifyUnsubscribeLiteRequestHeader(RequestHeader, code=RequestCode.NOTIFY_UNSUBSCRIBE_LITE):
    """Sent by a broker to notify a client that the client's subscription to a lite topic has ended."""

    lite_topic: str
    consumer_group: str
    client_id: str
