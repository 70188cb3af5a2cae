"""Queue locks with one name at the brokers, which keep them in memory for 60 s."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import structlog

from rmqd.broker_errors import AccessRefusedError, BrokerError
from rmqd.client.api.lock import lock_batch, unlock_batch
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

RENEW_SECONDS: Final = 20.0  # Java: rocketmq.client.rebalance.lockInterval
LOCK_TIMEOUT_SECONDS: Final = 1.0  # Java: lockBatchMQ


class BrokerLocks:
    """Requests and releases locks with this name for this client."""

    def __init__(self, client: ClientInstance, name: str) -> None:
        self.refused = False  # whether brokers refuse lock requests
        self._client = client
        self._name = name
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._granted_on: dict[str, RemotingConnection | None] = {}  # broker name -> connection

    def turn(self, broker_name: str) -> asyncio.Lock:
        """Return a process-local lock that serializes requests about a broker's locks.

        Otherwise a request for a lock could arrive after the request that releases it.
        """
        return self._turns[broker_name]

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> frozenset[MessageQueue] | None:
        """Lock queues of one broker, or renew the locks. Return the locked queues; None without a response."""
        address = self._address(broker_name)
        if address is None:
            return None
        try:
            granted = await lock_batch(
                self._client.remoting,
                address,
                self._name,
                self._client.client_id,
                queues,
                timeout_seconds=LOCK_TIMEOUT_SECONDS,
            )
        except RmqdError as error:
            refused = isinstance(error, BrokerError) and not error.retriable
            unknown = isinstance(error, AccessRefusedError) and error.refusal.is_about_who  # reported by the client
            if refused and not self.refused and not unknown:
                log.warning("ownership.lock_refused", broker=broker_name, lock=self._name, error=str(error))
            self.refused = self.refused or refused
            return None
        self.refused = False
        self._granted_on[broker_name] = self._client.remoting.connected(address)
        return granted

    def connection(self, broker_name: str) -> RemotingConnection | None:
        """Return the present connection to the broker; None if there is none."""
        address = self._address(broker_name)
        return None if address is None else self._client.remoting.connected(address)

    def may_be_lost(self, broker_name: str) -> bool:
        """Return whether the broker, which keeps locks in memory, was restarted or replaced since it granted a lock."""
        connection = self.connection(broker_name)
        return connection is not None and self._granted_on.get(broker_name) is not connection

    def may_any_be_lost(self) -> bool:
        """Return whether any broker's locks may be lost. Cheap, because a group has few brokers but many queues."""
        return any(map(self.may_be_lost, {*self._client.routes.brokers(), *self._granted_on}))

    async def unlock(self, broker_name: str, queues: Collection[MessageQueue], client_id: str | None = None) -> bool:
        """Unlock queues, for this client or another one. Return whether the broker responded."""
        address = self._address(broker_name)
        if address is None:
            return False
        client_id = client_id or self._client.client_id
        try:
            await unlock_batch(self._client.remoting, address, self._name, client_id, queues)
        except RmqdError as error:
            log.debug("ownership.unlock_failed", broker=broker_name, client_id=client_id, error=str(error))
            return False
        return True

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker with the queue's lock."""
        return self._client.routes.endpoint(queue)

    def by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
        """Return the queues by the name of the broker with their locks."""
        return {name: set(own) for name, own in self._client.routes.by_endpoint(queues).items()}

    def _address(self, broker_name: str) -> str | None:
        master = self._client.routes.master(broker_name)
        return None if master is None else self._client.send_address(master)
