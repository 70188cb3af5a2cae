"""Load for a broker that will be killed: messages, delayed messages and committed offsets."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rmqd.client.api.offset_requests import update_consumer_offset
from rmqd.client.api.remoting_request import request
from rmqd.client.api.send_requests import send_message
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import ResponseCode
from rmqd.errors import RemotingError
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.headers.send_headers import SendMessageRequestHeaderV2
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import BatchMember, encode_batch
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import PullSysFlag, format_properties

TOPIC, LATER, GROUP = "durable", "durable-later", "durable-group"
QUEUES = 4
BROKER_NAME = "broker-a"
BATCH = 10
SINGLE_PRODUCERS, BATCH_PRODUCERS, LATER_PRODUCERS = 8, 2, 2
LATER_MS = 1500
HOLD_MS = 200
LARGEST_BYTES = 1500
PULL_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class Stored(NamedTuple):
    """A message that the broker acknowledged."""

    queue_id: int
    offset: int
    number: int


@dataclass(slots=True)
class Acknowledged:
    """Responses of the broker before it died. `committed` has the last answered and last requested offset by queue."""

    stored: list[Stored] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    committed: dict[int, tuple[int, int]] = field(default_factory=dict)


def queue(topic: str, queue_id: int) -> MessageQueue:
    """A queue of the broker."""
    return MessageQueue(topic, BROKER_NAME, queue_id)


def body_of(number: int) -> bytes:
    """Return the body of a message, which depends only on its number."""
    filler = random.Random(number)
    return b"%d:" % number + filler.randbytes(filler.randrange(LARGEST_BYTES))


def number_of(message: Message) -> int | None:
    """Return the number of the message, or None if the message was changed."""
    number = int(message.body.partition(b":")[0])
    as_sent = message.body == body_of(number) and message.keys == f"k{number}" and message.flag == number % 7
    return number if as_sent else None


def properties_of(number: int, **more: str) -> dict[str, str]:
    """A message's properties."""
    return {"KEYS": f"k{number}", "TAGS": f"t{number % 3}", **more}


async def pull(
    remoting: RemotingClient,
    address: str,
    place: MessageQueue,
    offset: int,
    *,
    commit: int | None = None,
    hold_ms: int = 0,
) -> tuple[PullMessageResponseHeader, list[Message]]:
    """Pull from an offset, and commit an offset if `commit` is given."""
    header = PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=place.topic,
        queue_id=place.queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PullSysFlag.SUBSCRIPTION
        | (PullSysFlag.SUSPEND if hold_ms else 0)
        | (0 if commit is None else PullSysFlag.COMMIT_OFFSET),
        commit_offset=commit or 0,
        suspend_timeout_millis=hold_ms,
        subscription="*",
        sub_version=1,
    )
    reply = await request(remoting, address, header, timeout_seconds=10, accepted=PULL_CODES)
    return PullMessageResponseHeader.from_ext_fields(reply.ext_fields), decode_messages(reply.body, place).messages


class Load:
    """Producers and consumers that run as fast as the broker responds, until it stops."""

    def __init__(self, address: str, first: int, consumed: dict[int, int]) -> None:
        """`consumed` is the group's offset, by queue."""
        self.acknowledged = Acknowledged(committed={queue_id: (at, at) for queue_id, at in consumed.items()})
        self._address = address
        self._numbers = itertools.count(first)
        self._producers, self._consumers = RemotingClient(), RemotingClient()

    async def run(self) -> None:
        """Run until the broker is dead."""
        parts = [self._send_single() for _ in range(SINGLE_PRODUCERS)]
        parts += [self._send_batches() for _ in range(BATCH_PRODUCERS)]
        parts += [self._send_later() for _ in range(LATER_PRODUCERS)]
        parts += [self._consume(queue_id) for queue_id in range(QUEUES)]
        try:
            ends = await asyncio.gather(*parts, return_exceptions=True)
        finally:
            await self._producers.close()
            await self._consumers.close()
        for end in ends:
            if not isinstance(end, RemotingError):
                raise end or AssertionError("a part of the load ended by itself")

    async def _send_single(self) -> None:
        while True:
            number = next(self._numbers)
            queue_id = number % QUEUES
            await self._send(TOPIC, queue_id, body_of(number), properties_of(number), [number])

    async def _send_batches(self) -> None:
        while True:
            numbers = list(itertools.islice(self._numbers, BATCH))
            members = (BatchMember(body_of(number), properties_of(number), number % 7) for number in numbers)
            await self._send(TOPIC, numbers[0] % QUEUES, encode_batch(members), {}, numbers, batch=True)

    async def _send_later(self) -> None:
        while True:
            number = next(self._numbers)
            later = {"DELAY": "1"} if number % 2 else {"TIMER_DELIVER_MS": str(int(time.time() * 1000) + LATER_MS)}
            await self._send(LATER, 0, body_of(number), properties_of(number, **later), [number])
            await asyncio.sleep(0.005)  # many due messages would leave the broker little time for the rest

    async def _send(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        numbers: Iterable[int],
        *,
        batch: bool = False,
    ) -> None:
        numbers = list(numbers)
        header = SendMessageRequestHeaderV2(
            producer_group="durable-producers",
            topic=topic,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=int(time.time() * 1000),
            flag=numbers[0] % 7,
            properties=format_properties(properties),
            batch=batch,
        )
        receipt = await send_message(self._producers, self._address, header, body, timeout_seconds=10)
        assert receipt.status == ResponseCode.SUCCESS, receipt
        if topic == LATER:
            self.acknowledged.later += numbers
        else:
            self.acknowledged.stored += [
                Stored(receipt.queue.queue_id, receipt.queue_offset + place, number)
                for place, number in enumerate(numbers)
            ]

    async def _consume(self, queue_id: int) -> None:
        """Read on and commit each time: alternately with a commit request and with the next pull."""
        place, committed = queue(TOPIC, queue_id), self.acknowledged.committed
        at = committed[queue_id][0]
        for turn in itertools.count():
            answered, _ = committed[queue_id]
            committed[queue_id] = answered, at
            if turn % 2:
                await update_consumer_offset(self._consumers, self._address, GROUP, place, at, timeout_seconds=10)
            header, _ = await pull(
                self._consumers, self._address, place, at, commit=None if turn % 2 else at, hold_ms=HOLD_MS
            )
            committed[queue_id] = at, at
            at = header.next_begin_offset
