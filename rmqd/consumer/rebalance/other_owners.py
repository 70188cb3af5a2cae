"""Which queues members of other clients still have. They hold no lock of ours, but tell their queues when asked.

A Java member gives a queue up some time after a newcomer has taken it: once a broker has notified it, and its own
rebalance has run. Until then it goes on handling what it has cached. Its running info lists the queue until its last
commit of the queue is sent. The broker relays the request and the answer on the connection that carried that commit.
So whoever sees that the queue is gone from the list, and reads the stored offset then, begins behind the last commit.
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
    """The members of one group that are not rmqd, as brokers know them by their language."""

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._queues = Coalesced(self._ask)
        self._asking: set[asyncio.Task[frozenset[MessageQueue]]] = set()

    async def have(self, queue: MessageQueue, address: str, within_seconds: float) -> bool:
        """Whether such a member has the queue, says the broker; True if that is unknown after so many seconds.

        A member that cannot be asked counts as one without queues: its client does not answer, or it is gone.
        """
        # not cancelled with the caller: the broker would look silent while it waits for a member's answer
        asking = asyncio.create_task(self._queues(address), name=f"other-owners:{address}")
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        await self._clock.wait((asking,), timeout=within_seconds)
        return not asking.done() or queue in asking.result()

    def close(self) -> None:
        """Wait for no answer any more."""
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
            try:  # one after the other: each takes one of the broker's threads while it is asked
                queues |= (await consumer_running_info(remoting, address, self._group, client_id)).mq_table.keys()
            except RmqdError as error:
                log.debug("ownership.owners_unknown", address=address, client_id=client_id, error=str(error))
        return queues
