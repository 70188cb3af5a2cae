"""Which queues members of other clients still own. They hold no lock of ours, but report their queues on request.

A Java member releases a queue some time after a new member has acquired it: after a broker's notification and its own
rebalance. Until then it handles its cached messages. Its running info lists the queue until its last commit of the
queue is sent. The broker relays the request and the response on the connection that carried that commit. So a member
that no longer sees the queue in the list, and then reads the stored offset, starts after the last commit.
"""

from __future__ import annotations

import asyncio

import structlog

from rmqd.client.api.group import consumer_connection, consumer_running_info
from rmqd.client.coalesce import Coalesced
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.errors import RmqdError
from rmqd.wire.command import LANGUAGE
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)


class OtherOwners:
    """The members of one group that are not rmqd, identified by their language at the broker."""

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._queues = Coalesced(self._ask)
        self._asking: set[asyncio.Task[frozenset[MessageQueue]]] = set()

    async def have(self, queue: MessageQueue, address: str, within_seconds: float) -> bool:
        """Return whether such a member owns the queue; True if that is still unknown after `within_seconds`.

        A member that does not respond counts as one without queues: its client does not answer, or it no longer exists.
        """
        # not cancelled with the caller: the broker would seem unresponsive while it waits for a member
        asking = asyncio.create_task(self._queues(address), name=f"other-owners:{address}")
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        await self._clock.wait((asking,), timeout=within_seconds)
        return not asking.done() or queue in asking.result()

    def close(self) -> None:
        """Stop waiting for responses."""
        for asking in self._asking:
            asking.cancel()

    async def _ask(self, address: str) -> frozenset[MessageQueue]:
        remoting, queues = self._client.remoting, frozenset[MessageQueue]()
        try:
            members = (await consumer_connection(remoting, address, self._group)).connection_set
        except RmqdError as error:
            log.debug("ownership.owners_unknown", address=address, error=str(error))
            return queues
        for client_id in sorted({one.client_id for one in members if one.language != LANGUAGE.name}):
            try:  # one by one: each request occupies a thread of the broker
                queues |= (await consumer_running_info(remoting, address, self._group, client_id)).mq_table.keys()
            except RmqdError as error:
                log.debug("ownership.owners_unknown", address=address, client_id=client_id, error=str(error))
        return queues
