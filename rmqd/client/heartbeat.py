"""Heartbeats, which report the groups of this process to every broker: every 30 s, and at once after a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from rmqd.client.api.group_requests import HEARTBEAT_TIMEOUT_SECONDS, send_heartbeat
from rmqd.client.api.remoting_request import SharedCalls
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.client.remoting.frame_reader import parse_body
from rmqd.client.remoting.peer_requests import Reply
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.route_table import RouteTable
from rmqd.errors import CircuitOpenError, ProtocolError, RemotingTimeoutError, RmqdError
from rmqd.runtime.clock import backoff_seconds, wait_within, with_jitter
from rmqd.runtime.plain_text import duration
from rmqd.wire.bodies.group_bodies import ResetOffsetBody
from rmqd.wire.bodies.heartbeat_data import ConsumerData, HeartbeatData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.fields import MAX_RESET_BYTES, MAX_RESET_OBJECTS, check_body
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class PushedReset:
    """A reset that a broker pushes to all members of a group: new offsets for all of the broker's queues of a topic."""

    topic: str
    offsets: dict[MessageQueue, int]
    named: int
    """The number of queues in the broker's list, including queues of other topics."""


class PushedResets:
    """The parser of the resets that brokers push to one group. Resets are parsed in the order of their arrival."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, command: RemotingCommand) -> PushedReset:
        """Return the parsed reset, after all earlier resets are parsed. Raises ProtocolError."""
        async with self._reading:  # otherwise a small reset could overtake a large reset, which a thread parses
            return await parse_body(partial(_read, command.ext_fields.get("topic", "")), command.body)


def _read(topic: str, body: bytes) -> PushedReset:
    check_body(body, "a reset", MAX_RESET_BYTES, MAX_RESET_OBJECTS)
    table = ResetOffsetBody.from_json(body).offset_table
    if any(offset < 0 for offset in table.values()):
        raise ProtocolError("a reset to a negative offset is not possible")
    return PushedReset(topic, {queue: offset for queue, offset in table.items() if queue.topic == topic}, len(table))


class GroupMembership(Protocol):
    """The client's view of a consumer group: its data for heartbeats, and its handling of brokers' requests."""

    @property
    def group(self) -> str:
        """The group's name as brokers know it, including the namespace."""

    def consumer_data(self) -> ConsumerData:
        """Called for every heartbeat. Returns the group's data for the heartbeat. Must not block."""

    def on_consumer_ids_changed(self) -> None:
        """Called when a broker reports that the group's members changed. Starts a rebalance; must not block."""

    async def on_request(self, command: RemotingCommand) -> Reply | None:
        """Called with a broker's request for this group. Returns the response, or None for no response.

        The requests are RESET_CONSUMER_CLIENT_OFFSET (without a response), GET_CONSUMER_STATUS_FROM_CLIENT,
        GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY. An RmqdError becomes the response SYSTEM_ERROR.
        """


log = structlog.get_logger(__name__)

RETRY_FIRST_SECONDS = 0.2
RETRY_MOST_SECONDS = 5.0
QUIET_SECONDS = 10.0  # if a broker sends nothing for this time while requests wait, a heartbeat tests the connection
POLL_SECONDS = 2.0  # interval of the checks for QUIET_SECONDS


@dataclass(slots=True)
class _Broker:
    """The state of heartbeats to one address: the last result, and an event that requests the next heartbeat."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    up: bool | None = None
    answered_on: RemotingConnection | None = None  # the connection on which the last heartbeat was answered
    failures: int = 0


class Heartbeat:
    """The sender of heartbeats to every address of every known broker, including slaves.

    A heartbeat contains the registered groups. Each address has a separate task in `run`, and each heartbeat has a
    deadline, so a dead broker does not delay other brokers. A failed heartbeat is repeated soon, and refreshes routes.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        routes: RouteTable,
        client_id: str,
        memberships: Callable[[], Iterable[GroupMembership]],
        *,
        interval_seconds: float,
    ) -> None:
        self._remoting = remoting
        self._clock = remoting.clock
        self._routes = routes
        self._client_id = client_id
        self._memberships = memberships
        self._interval = interval_seconds
        self._brokers: dict[str, _Broker] = {}
        self._send = SharedCalls(self._send_now)
        self._under_way: dict[str, set[asyncio.Task[RmqdError | None]]] = {}
        self._reconcile = asyncio.Event()
        routes.on_change(lambda _: self._reconcile.set())
        remoting.on_opened.append(self._opened)
        remoting.lost.append(lambda address, _: self.send_heartbeats_soon(address))
        remoting.silent.append(self.send_heartbeats_soon)

    @property
    def brokers_up(self) -> Mapping[str, bool]:
        """Whether the last heartbeat and all later requests to an address were answered, by address.

        Addresses without a heartbeat so far are omitted.
        """
        known = self._routes.broker_addresses()
        return {
            address: broker.up and not self._remoting.is_down(address)
            for address, broker in sorted(self._brokers.items())
            if address in known and broker.up is not None
        }

    async def send_heartbeats(self) -> dict[str, RmqdError | None]:
        """Send a heartbeat to every known broker now, and wait for each response until the heartbeat's deadline.

        Returns the error by address; None if the broker answered. Without groups nothing is sent.
        """
        if not any(True for _ in self._memberships()):
            return {}
        addresses = sorted(self._routes.broker_addresses())
        errors = await asyncio.gather(*map(self._send, addresses))
        for address, error in zip(addresses, errors, strict=True):
            if error is not None:
                self.send_heartbeats_soon(address)  # `run` repeats the heartbeat until the broker answers
        return dict(zip(addresses, errors, strict=True))

    def is_known_on(self, connection: RemotingConnection) -> bool:
        """Return whether a heartbeat was answered on this connection, so that the broker knows this client there."""
        broker = self._brokers.get(connection.address)
        return broker is not None and broker.answered_on is connection

    async def send_heartbeat_to(self, address: str) -> None:
        """Send a heartbeat to one broker now, and wait for the response. Raises RmqdError if it fails."""
        if (error := await self._send(address)) is not None:
            self.send_heartbeats_soon(address)
            raise error

    def send_heartbeats_soon(self, address: str | None = None) -> None:
        """Let `run` send a heartbeat at once to `address`, if it is a known address; None: to all known addresses."""
        for known, broker in self._brokers.items():
            if address is None or known == address:
                broker.wake.set()

    def is_heartbeat_pending(self, address: str) -> bool:
        """Return whether a heartbeat to an address is about to be sent, or not answered yet."""
        return self._send.is_running(address) or bool(self._under_way.get(address))

    async def wait_for_pending(self, address: str) -> None:
        """Wait until all heartbeats to an address that were created before this call are answered or have failed."""
        await self._send.wait_for_earlier(address)
        if under_way := self._under_way.get(address):
            await asyncio.wait(under_way)

    async def run(self) -> None:
        """Send heartbeats to all brokers in the routes, and follow changes of the routes. Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            keeping: dict[str, asyncio.Task[None]] = {}
            while True:
                self._reconcile.clear()
                wanted = self._routes.broker_addresses()
                for address in keeping.keys() - wanted:
                    keeping.pop(address).cancel()
                for address in self._brokers.keys() - wanted:
                    del self._brokers[address]
                for address in wanted - keeping.keys():
                    keeping[address] = tasks.create_task(self._keep(address), name=f"heartbeat:{address}")
                await self._reconcile.wait()

    async def _keep(self, address: str) -> None:
        broker = self._broker(address)
        while True:
            broker.wake.clear()
            if any(True for _ in self._memberships()):
                await self._send(address)
            await self._rest(address, broker)

    async def _rest(self, address: str, broker: _Broker) -> None:
        """Wait until the next heartbeat to a broker is due.

        A heartbeat is due earlier if requests wait and nothing was received for QUIET_SECONDS. Such silence is normal
        if no messages arrive, because a broker may hold a pull for 20 s. But a dead connection, which blocks all pulls,
        looks the same. A heartbeat shows the difference, because brokers answer it at once.
        """
        until = self._clock.monotonic() + self._pause_seconds(address, broker)
        while (left := until - self._clock.monotonic()) > 0 and not broker.wake.is_set():
            await wait_within(self._clock, min(left, POLL_SECONDS), broker.wake.wait())
            connection = self._remoting.connected(address) if broker.failures == 0 else None
            if connection is not None and connection.silent_seconds >= QUIET_SECONDS:
                return

    def _pause_seconds(self, address: str, broker: _Broker) -> float:
        if broker.failures == 0:
            return self._interval
        if self._remoting.is_down(address):  # the circuit breaker rejects requests until its pause ends
            return max(self._remoting.breakers.remaining_pause_seconds(address), RETRY_FIRST_SECONDS)
        return with_jitter(
            backoff_seconds(RETRY_FIRST_SECONDS, broker.failures, min(RETRY_MOST_SECONDS, self._interval))
        )

    async def _send_now(self, address: str) -> RmqdError | None:
        """Send a heartbeat, and wait for its response. Returns its error, or None.

        The request runs in a separate task, which continues if the caller is cancelled. Until the broker responds, it
        may process the heartbeat at any time, so `settled` must be able to wait for the task.
        """
        task = asyncio.create_task(self._attempt(address), name=f"heartbeat to {address}")
        under_way = self._under_way.setdefault(address, set())
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        return await asyncio.shield(task)

    async def _attempt(self, address: str) -> RmqdError | None:
        data = HeartbeatData(
            client_id=self._client_id,
            consumer_data_set=tuple(membership.consumer_data() for membership in self._memberships()),
        )
        try:
            async with self._clock.timeout(HEARTBEAT_TIMEOUT_SECONDS):
                connection = await self._remoting.connection(address)
                version = await send_heartbeat(self._remoting, address, data)
        except TimeoutError:
            error: RmqdError = RemotingTimeoutError(
                address, f"no response to the heartbeat within {duration(HEARTBEAT_TIMEOUT_SECONDS)}"
            )
        except RmqdError as failure:
            error = failure
        else:
            self._answered(address, version, connection)
            return None
        self._failed(address, error)
        return error

    def _answered(self, address: str, version: int, connection: RemotingConnection) -> None:
        """Record the response to a heartbeat. `connection` was the connection to the address when it was sent."""
        broker = self._broker(address)
        if not broker.up:
            log.info("broker.up", address=address, version=version)
        if broker.up is False:  # the broker has returned, and the routes may not contain it yet
            self._routes.refresh_soon()
        broker.up, broker.failures = True, 0
        if connection is self._remoting.connected(address):
            broker.answered_on = connection
        else:  # the connection was replaced, and the broker may not know this client on the new connection
            self.send_heartbeats_soon(address)

    def _failed(self, address: str, error: RmqdError) -> None:
        broker = self._broker(address)
        broker.failures += 1
        if broker.up is not False and (not error.is_reported or isinstance(error, CircuitOpenError)):
            log.warning("broker.down", address=address, reason=str(error))
        broker.up = False
        self._routes.refresh_soon()

    def _broker(self, address: str) -> _Broker:
        return self._brokers.setdefault(address, _Broker())

    def _opened(self, address: str) -> None:
        # A broker removes a client when its connection ends. So each new connection needs a heartbeat, unless it was
        # opened by a heartbeat.
        if not self._send.is_running(address):
            self.send_heartbeats_soon(address)
