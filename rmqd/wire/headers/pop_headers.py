"""Headers of POP: pops, acknowledgements, longer hiding, peeks, the number of waiting pops, and lite topics.

Times are milliseconds by the sender's clock. QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE and BATCH_ACK_MESSAGE have no
header, only a body. Lite topics: RIP-83, RocketMQ 5.5.
"""

from __future__ import annotations

from rmqd.codes import RequestCode
from rmqd.wire.headers.request_header import Header, RequestHeader
from rmqd.wire.receipt_handle import PopHandle, RetryFlag


class PopMessageRequestHeader(RequestHeader, code=RequestCode.POP_MESSAGE):
    """Asks for messages of one queue or, with `queue_id` -1, of any queue of a topic. It hides them from other members.

    `poll_time` is the time that the broker may wait for messages. `init_mode` is the start offset of a new group (0
    first, 1 last). With `attempt_id` an orderly member repeats a pop whose response may be lost.
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
    """When and for how long messages were popped. `rmqd.wire.receipt_handle` reads the three infos."""

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
        """Return the handle of one of the messages."""
        times = self.pop_time, self.invisible_time
        return PopHandle(start_offset, *times, self.revive_qid, retry, broker_name, queue_id, queue_offset)


class AckMessageRequestHeader(RequestHeader, code=RequestCode.ACK_MESSAGE):
    """Acknowledges one message. `topic` is the stored topic, possibly a retry topic; `extra_info` is the handle.

    With a `lite_topic`, `topic` is its parent, and `offset` is the offset in the lite topic's queue.
    """

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(RequestHeader, code=RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
    """Hides a message for `invisible_time` from now on. The handle in `extra_info` is invalid afterwards.

    `lite_topic` as in AckMessageRequestHeader.
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
    """The changed parts of the message's new handle."""

    pop_time: int
    invisible_time: int
    revive_qid: int


class PeekMessageRequestHeader(RequestHeader, code=RequestCode.PEEK_MESSAGE):
    """Asks for messages like a pop, without hiding them."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int


class NotificationRequestHeader(RequestHeader, code=RequestCode.NOTIFICATION):
    """Asks whether there is a message to pop, and waits for one up to `poll_time`."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: int
    born_time: int
    order: bool | None = None
    attempt_id: str | None = None


class PollingInfoRequestHeader(RequestHeader, code=RequestCode.POLLING_INFO):
    """Asks for the number of pops of a queue that wait on the broker."""

    consumer_group: str
    topic: str
    queue_id: int


class PopLiteMessageRequestHeader(RequestHeader, code=RequestCode.POP_LITE_MESSAGE):
    """Asks for messages of any lite topic that the client is subscribed to. `topic` is the parent topic.

    Times are milliseconds. If `born_time` is 0, the broker uses its own clock.
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
    """When and for how long messages were popped. `rmqd.wire.lite_topic.parse_pop_counts` reads `order_count_info`."""

    pop_time: int
    invisible_time: int
    revive_qid: int
    order_count_info: str | None = None


class NotifyUnsubscribeLiteRequestHeader(RequestHeader, code=RequestCode.NOTIFY_UNSUBSCRIBE_LITE):
    """From a broker: the client's subscription to the lite topic has ended."""

    lite_topic: str
    consumer_group: str
    client_id: str
