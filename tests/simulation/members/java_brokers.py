"""The requests of a Java consumer to brokers: locks, offsets, pulls and send-backs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rmqd.client.api.group_requests import get_consumer_list, lock_batch
from rmqd.client.api.offset_requests import query_stored_offset
from rmqd.client.api.send_requests import send_message_back
from rmqd.client.remoting.connection import OPAQUE_NUMBERS
from rmqd.codes import RequestCode
from rmqd.errors import BrokerUnknownError, RmqdError
from rmqd.wire.bodies.group_bodies import LockBatchRequestBody
from rmqd.wire.command import encode_request
from rmqd.wire.headers.group_headers import UpdateConsumerOffsetRequestHeader
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.wire.command import RemotingCommand
    from rmqd.wire.message_queue import MessageQueue
    from rmqd.wire.messages.message import Message

OFFSET_SECONDS: Final = 5.0
PULL_SECONDS: Final = 30.0


class JavaBrokers:
    """Sends requests to the brokers of queues for one group. Raises RmqdError unless stated otherwise."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group

    def address(self, queue: MessageQueue) -> str:
        """Return the address of the queue's broker."""
        address = self._client.routes.master(queue.broker_name)
        if address is None:
            raise BrokerUnknownError(queue.topic, queue.broker_name)
        return address

    async def members(self, queue: MessageQueue) -> list[str]:
        """Return the client ids of the group, as this queue's broker knows them."""
        return sorted(await get_consumer_list(self._client.remoting, self.address(queue), self._group))

    async def lock(self, queues: Sequence[MessageQueue]) -> frozenset[MessageQueue]:
        """Lock queues of one broker, or renew their locks. Returns those that are locked; none after an error."""
        try:
            remoting, client_id = self._client.remoting, self._client.client_id
            return await lock_batch(remoting, self.address(queues[0]), self._group, client_id, queues)
        except RmqdError:
            return frozenset()

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues, one-way. Raises nothing."""
        for own in self._client.routes.by_endpoint(queues).values():
            body = LockBatchRequestBody(self._group, self._client.client_id, tuple(own))
            await self._tell(own[0], RequestCode.UNLOCK_BATCH_MQ, {}, body.to_json())

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the group's offset of a queue; None if there is none."""
        found = await query_stored_offset(
            self._client.remoting, self.address(queue), self._group, queue, timeout_seconds=OFFSET_SECONDS
        )
        return None if found is None else found.offset

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset, one-way. Raises nothing."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        )
        await self._tell(queue, header.code, header.ext_fields())

    async def pull(self, queue: MessageQueue, header: PullMessageRequestHeader) -> RemotingCommand:
        """Return the response to a pull, whatever its code."""
        connection = await self._client.connection(self.address(queue))
        return await self._client.remoting.call(connection, header.code, header.ext_fields(), PULL_SECONDS)

    async def take_back(self, message: Message, delay_level: int, most_attempts: int) -> bool:
        """Send a message back. Return whether its broker accepted it."""
        queue = message.message_queue
        try:
            await send_message_back(
                self._client.remoting,
                self.address(queue),
                self._group,
                message.commit_log_offset,
                delay_level,
                broker_name=queue.broker_name,
                origin_msg_id=message.msg_id,
                origin_topic=message.topic,
                max_reconsume_times=most_attempts,
            )
        except RmqdError:
            return False
        return True

    async def _tell(
        self, queue: MessageQueue, code: RequestCode, ext_fields: dict[str, str], body: bytes = b""
    ) -> None:
        with contextlib.suppress(RmqdError):
            remoting = self._client.remoting
            connection = await remoting.connection(self.address(queue))
            fields = remoting.security.signed(ext_fields, body)
            connection.write(encode_request(code, next(OPAQUE_NUMBERS), fields, body, oneway=True))
