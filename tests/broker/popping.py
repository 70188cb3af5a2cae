"""The requests and responses of a member in POP mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rmqd.codes import RequestCode
from rmqd.wire.bodies.pop_bodies import BatchAck, BatchAckMessageRequestBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmqd.wire.messages.decode import decode_record
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.properties import POP_CK
from rmqd.wire.receipt_handle import (
    ANY_QUEUE_ID,
    PopHandle,
    PoppedQueue,
    RetryFlag,
    parse_start_offsets,
)
from tests.broker.peer import Peer

INVISIBLE_SECONDS = 60
BROKER = "broker-a"


@dataclass(frozen=True, slots=True)
class Got:
    """A popped message, and the handle that acknowledges it."""

    message: StoredMessage
    handle: PopHandle

    @property
    def text(self) -> str:
        return self.message.body.decode()

    def real_topic(self, group: str) -> str:
        return self.handle.retry.real_topic(group, self.message.topic)


def pop_fields(topic: str = "T", group: str = "g", **changed: Any) -> dict[str, str]:
    """Return the ext fields of a pop that does not wait."""
    values: dict[str, Any] = {
        "consumer_group": group,
        "topic": topic,
        "queue_id": ANY_QUEUE_ID,
        "max_msg_nums": 32,
        "invisible_time": INVISIBLE_SECONDS * 1000,
        "poll_time": 0,
        "born_time": 0,
        "init_mode": 0,
        "exp_type": "TAG",
        "exp": "*",
        "order": False,
    }
    return PopMessageRequestHeader(**(values | changed)).ext_fields()


async def pop(peer: Peer, topic: str = "T", group: str = "g", **changed: Any) -> RemotingCommand:
    """Send 200050, and return the response."""
    return await peer.call(RequestCode.POP_MESSAGE, pop_fields(topic, group, **changed))


async def popped(peer: Peer, topic: str = "T", group: str = "g", **changed: Any) -> list[Got]:
    """Return the messages of a pop; an empty list if there are none."""
    reply = await pop(peer, topic, group, **changed)
    if reply.code in (209, 210):
        return []
    assert reply.code == 0, reply.remark
    return messages_of(reply)


def messages_of(reply: RemotingCommand) -> list[Got]:
    """Return each message with its handle, which is built as in the Java client."""
    header = PopMessageResponseHeader.from_ext_fields(reply.ext_fields)
    starts = parse_start_offsets(header.start_offset_info)
    infos = [part.split(" ") for part in (header.msg_offset_info or "").split(";") if part]
    offsets = {(int(retry), int(queue_id)): texts.split(",") for retry, queue_id, texts in infos}
    got, body = [], reply.body
    while body:
        size = int.from_bytes(body[:4])
        message, body = decode_record(body[:size]), body[size:]
        queue = PoppedQueue(RetryFlag.of(message.topic), message.queue_id)
        if POP_CK in message.properties:
            handle = PopHandle.parse(message.properties[POP_CK])
        else:
            handle = PopHandle(
                starts[queue],
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                queue.retry,
                BROKER,
                queue.queue_id,
                message.queue_offset,
            )
        assert str(message.queue_offset) in offsets[handle.retry, handle.queue_id]
        got.append(Got(message, handle))
    assert len(got) == sum(map(len, offsets.values()))
    return got


async def ack(peer: Peer, got: Got, group: str = "g") -> RemotingCommand:
    """Send 200051."""
    header = AckMessageRequestHeader(**_named(got, group))
    return await peer.call(header.code, header.ext_fields())


async def ack_all(peer: Peer, messages: list[Got], group: str = "g") -> RemotingCommand:
    """Send 200151 with one part for each message, which the protocol permits."""
    acks = (
        BatchAck(
            group,
            got.message.topic,
            got.handle.retry,
            got.handle.start_offset,
            got.handle.queue_id,
            got.handle.revive_queue_id,
            got.handle.pop_time,
            got.handle.invisible_time,
            (got.handle.queue_offset,),
        )
        for got in messages
    )
    return await peer.call(RequestCode.BATCH_ACK_MESSAGE, {}, BatchAckMessageRequestBody(BROKER, tuple(acks)).to_json())


async def hide(peer: Peer, got: Got, seconds: float, group: str = "g") -> Got:
    """Send 200053, and return the message with its new handle."""
    header = ChangeInvisibleTimeRequestHeader(**_named(got, group), invisible_time=int(seconds * 1000))
    reply = await peer.call(header.code, header.ext_fields())
    assert reply.code == 0, reply.remark
    fields = reply.ext_fields
    handle = got.handle._replace(
        start_offset=got.handle.queue_offset,
        pop_time=int(fields["popTime"]),
        invisible_time=int(fields["invisibleTime"]),
        revive_queue_id=int(fields["reviveQid"]),
    )
    return Got(got.message, handle)


def _named(got: Got, group: str) -> dict[str, Any]:
    """Return the header fields that identify a popped message."""
    return {
        "consumer_group": group,
        "topic": got.real_topic(group),
        "queue_id": got.handle.queue_id,
        "extra_info": str(got.handle),
        "offset": got.handle.queue_offset,
    }


def texts(messages: list[Got]) -> list[str]:
    """Return the bodies, sorted, because the order of the queues is random."""
    return sorted(got.text for got in messages)
