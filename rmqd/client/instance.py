"""The client of a process for one cluster: connections, routes and heartbeats that all its groups share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from rmqd.client.api.group_requests import unregister_client
from rmqd.client.client_options import ClientOptions, local_address, make_client_id
from rmqd.client.heartbeat import GroupMembership, Heartbeat
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.client.remoting.peer_requests import Reply
from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.cluster_id import ClusterId
from rmqd.client.routing.name_server_client import NameServers
from rmqd.client.routing.route_table import RouteTable
from rmqd.client.routing.routes import vip_address
from rmqd.client.sending.producer import Producer
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import RmqdError
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.runtime.plain_text import duration
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import Identity, MessageQueue
from rmqd.wire.topics import unwrap_namespace

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 8.0  # within this time after a broker returns, all rmqd clients have sent a heartbeat to it


class Replicas:
    """The selection of brokers' replicas by reachability, and the detection of replicas that moved.

    If a replica gets a new address, the connection to the old address is closed. The old machine may be unreachable, so
    requests that wait for its responses fail at once, and callers can send them to the new address.
    """

    def __init__(self, remoting: RemotingClient, routes: RouteTable) -> None:
        self._remoting = remoting
        self._routes = routes
        self._known: dict[str, dict[int, str]] = {}  # the last address of each replica, by broker name
        routes.on_change(self._routes_changed)

    def address_to_pull_from(self, broker_name: str, broker_id: int = 0) -> str | None:
        """Return the address to pull from: replica `broker_id`, or another if it is missing or down; None if none."""
        address = self._routes.address(broker_name, broker_id)
        if address is None or not self._remoting.is_down(address):
            return address
        others = self._routes.replicas(broker_name).values()
        return next((other for other in others if not self._remoting.is_down(other)), address)

    def is_reachable(self, broker_name: str) -> bool:
        """Return whether one of the broker's addresses is connected and not down."""
        addresses = self._routes.replicas(broker_name).values()
        return any(self._remoting.connected(at) is not None and not self._remoting.is_down(at) for at in addresses)

    def sorted_by_preference(self, addresses: Iterable[str]) -> list[str]:
        """Sort addresses in this order: connected for SETTLE_SECONDS; connected later or not connected; down."""
        return sorted(
            addresses, key=lambda address: (self._remoting.is_down(address), self.is_newly_connected(address))
        )

    def is_newly_connected(self, address: str) -> bool:
        """Return whether this client is not connected to an address, or has been for less than SETTLE_SECONDS."""
        connection = self._remoting.connected(address)
        return connection is None or self._remoting.clock.monotonic() - connection.made_at < SETTLE_SECONDS

    def _routes_changed(self, _: frozenset[str]) -> None:
        in_use = self._routes.broker_addresses()
        for name, replicas in self._routes.brokers().items():
            before = self._known.get(name, {})
            # keep the address of a replica that is missing now: a restarted name server may not know it yet
            self._known[name] = {**before, **replicas}
            for broker_id, gone in before.items():
                if gone not in in_use and replicas.get(broker_id, gone) != gone:
                    log.info("broker.moved", broker=name, gone=gone, addresses=sorted(replicas.values()))
                    self._remoting.drop_address(gone, f"broker {name} has moved to another address")


UNREGISTER_DEADLINE_SECONDS = 3.0
MAX_OFFSET_REQUESTS: Final = 32  # limit of offset requests in flight to one broker

# For each kind of request that brokers send to a member: the ext field with the group's name.
GROUP_FIELDS = {
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}


class ClientInstance:
    """The client that all groups of a process share for one cluster. Groups may `register` and `unregister` any time.

    The constructor starts no tasks; `run` owns all tasks. Requests may be sent before `run` is called.
    """

    def __init__(
        self, options: ClientOptions, *, remoting: RemotingClient | None = None, clock: Clock | None = None
    ) -> None:
        self.options = options
        self.clock = clock or (SystemClock() if remoting is None else remoting.clock)
        self.client_id = make_client_id(local_address(options.nameservers), options.instance_name, options.unit_name)
        self.remoting = remoting or RemotingClient(options, self.clock)
        self.name_servers = NameServers(
            self.remoting, options.nameservers, url=options.nameserver_url, unit_name=options.unit_name
        )
        self.cluster_id = ClusterId(self.remoting, self.name_servers, options.state_dir)
        interval_seconds = options.poll_name_server_interval_seconds
        self.routes = RouteTable(self._get_route, self.clock, refresh_interval_seconds=interval_seconds)
        self.replicas = Replicas(self.remoting, self.routes)
        self.groups: dict[str, GroupMembership] = {}
        """The registered groups by name."""
        self._topics: dict[str, frozenset[str]] = {}
        self.heartbeat = Heartbeat(
            self.remoting,
            self.routes,
            self.client_id,
            self.groups.values,
            interval_seconds=options.heartbeat_broker_interval_seconds,
        )
        self.producer = Producer(
            self.remoting,
            self.routes,
            clock=self.clock,
            vip_channel_enabled=options.vip_channel_enabled,
            unit_mode=options.unit_mode,
        )
        self._offset_requests: dict[str, asyncio.Semaphore] = {}  # key: broker name
        self._stop = asyncio.Event()
        requests = self.remoting.peer_requests
        requests.handlers |= dict.fromkeys(GROUP_FIELDS, self._asked)
        requests.notice_handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._noticed

    def register(self, membership: GroupMembership) -> None:
        """Add a group: watch its topics, include it in heartbeats, and pass brokers' requests for this group to it.

        Raises RmqdError if a group with this name is already registered.
        """
        group = membership.group
        if group in self.groups:
            raise RmqdError(f"consumer group {group} is running in this process already")
        self.groups[group] = membership
        self._topics[group] = frozenset(
            subscription.topic for subscription in membership.consumer_data().subscription_data_set
        )
        for topic in self._topics[group]:
            self.routes.watch(topic)
        self.heartbeat.send_heartbeats_soon()

    def identity(self, group: str, *, replay: str = "") -> Identity:
        """Return a group's identity. `group` includes the namespace. Call this only after a route was received."""
        options, cluster = self.options, self.cluster_id.id or self.cluster_id.name
        return Identity(cluster, options.joined_namespaces, unwrap_namespace(group, options.namespace), replay=replay)

    async def unregister(self, group: str) -> None:
        """Remove a group, and unregister it at every connected broker, each within 3 s. Raises nothing.

        The brokers then notify the other members at once, which otherwise wait until brokers drop this member.
        """
        if self.groups.pop(group, None) is None:
            return
        topics = self._topics.pop(group)
        # A broker without a connection needs no request, because it removed this client when the connection ended. But
        # a pending heartbeat with the group may open a new connection.
        known = self.routes.broker_addresses()
        addresses = [at for at in known if self.remoting.connected(at) or self.heartbeat.is_heartbeat_pending(at)]
        await asyncio.gather(*(self._unregister_at(address, group) for address in addresses))
        for topic in topics:
            self.routes.unwatch(topic)
        if group in self.groups:  # registered again meanwhile; brokers may have processed the unregister afterwards
            self.heartbeat.send_heartbeats_soon()

    async def connection(self, address: str) -> RemotingConnection:
        """Return a connection for pulls and pops. The broker has received a heartbeat on it, and so knows the groups.

        If necessary, a connection is opened and a heartbeat sent. Raises RmqdError, at once if the address is down.
        """
        self.remoting.breakers.raise_until_responding(address)
        connection = self.remoting.connected(address) or await self.remoting.connection(address)
        if not self.heartbeat.is_known_on(connection):
            await self.heartbeat.send_heartbeat_to(address)
        return connection

    def offset_request(self, queue: MessageQueue) -> asyncio.Semaphore:
        """Return the semaphore that callers must hold during a request for a queue's offsets.

        It admits MAX_OFFSET_REQUESTS requests for each broker at once; further requests wait without a deadline.
        Without this limit, a group with thousands of queues would send all requests at once. A busy machine could not
        read so many responses before their deadlines, and would repeat all requests.
        """
        broker = self.routes.endpoint(queue)
        return self._offset_requests.setdefault(broker, asyncio.Semaphore(MAX_OFFSET_REQUESTS))

    def send_address(self, address: str) -> str:
        """Return the address for sends, send-backs and locks: the broker's VIP channel if enabled, else `address`."""
        return vip_address(address) if self.options.vip_channel_enabled else address

    def update_security(self, options: ClientOptions) -> None:
        """Use the access keys and TLS settings of these options from now on. All other options are ignored."""
        self.options = replace(
            self.options,
            access_key=options.access_key,
            secret_key=options.secret_key,
            security_token=options.security_token,
            tls=options.tls,
        )
        log.info("access.renewed", tls=options.tls.enabled, signed=bool(options.access_key))
        self.remoting.secure(options)
        self.routes.refresh_soon()
        self.heartbeat.send_heartbeats_soon()

    def stop(self) -> None:
        """Let `run` unregister the remaining groups and return. Does not wait until `run` has returned."""
        self._stop.set()

    async def run(self) -> None:
        """Keep addresses, routes and heartbeats up to date until `stop`. If cancelled, does not unregister groups."""
        try:
            async with asyncio.TaskGroup() as tasks:
                keepers = [
                    tasks.create_task(self.name_servers.run(), name="name-servers"),
                    tasks.create_task(self.routes.run(), name="routes"),
                    tasks.create_task(self.heartbeat.run(), name="heartbeats"),
                ]
                await self._stop.wait()
                await asyncio.gather(*(self.unregister(group) for group in list(self.groups)))
                for keeper in keepers:
                    keeper.cancel()
        finally:
            await self.remoting.close()

    async def close(self) -> None:
        """Close the connections. This is only needed if `run` was not called, because `run` closes them at its end."""
        await self.remoting.close()

    def snapshot(self) -> ClientSnapshot:
        """Return the client's present counters and problems, for metrics and the status page."""
        traffic, names = self.remoting.traffic, self.routes.brokers_by_address()
        return ClientSnapshot(
            client_id=self.client_id,
            brokers_up={names[address]: up for address, up in self.heartbeat.brokers_up.items()},
            requests={int(code): histogram.snapshot() for code, histogram in traffic.durations.items()},
            request_failures=dict(traffic.failures),
            corrupt_frames=traffic.corrupt_frames,
            doubted_replies=traffic.doubted_replies,
            refused=self.remoting.security.refusals.current_reasons(),
            problems=self.routes.problems(),
        )

    async def _unregister_at(self, address: str, group: str) -> None:
        try:
            async with self.clock.timeout(UNREGISTER_DEADLINE_SECONDS):
                # A heartbeat in flight may contain the group. If the broker processed this heartbeat after the
                # unregister, it would add the group again.
                await self.heartbeat.wait_for_pending(address)
                if self.remoting.connected(address) is None:
                    return
                await unregister_client(self.remoting, address, self.client_id, consumer_group=group)
        except TimeoutError:
            reason = f"no answer in {duration(UNREGISTER_DEADLINE_SECONDS)}"
            log.warning("group.not_unregistered", group=group, address=address, reason=reason)
        except RmqdError as error:
            if not error.is_reported:
                log.warning("group.not_unregistered", group=group, address=address, reason=str(error))

    async def _get_route(self, topic: str) -> TopicRouteData:
        """Return a topic's route. If groups are registered, first learn the cluster's id for the groups' records."""
        route = await self.name_servers.get_route(topic)
        if self.groups:
            await self.cluster_id.learn()
        return route

    async def _asked(self, command: RemotingCommand, address: str) -> Reply | None:
        group = command.ext_fields.get(GROUP_FIELDS[RequestCode(command.code)], "")
        membership = self.groups.get(group)
        if membership is None:
            log.debug("request.unknown_group", code=int(command.code), group=group, address=address)
            return ResponseCode.SYSTEM_ERROR, f"the consumer group <{group}> is not registered in this client", {}, b""
        return await membership.on_request(command)

    def _noticed(self, command: RemotingCommand, address: str) -> None:
        group = command.ext_fields.get("consumerGroup", "")
        if (membership := self.groups.get(group)) is not None:
            membership.on_consumer_ids_changed()
        else:
            log.debug("request.unknown_group", code=int(command.code), group=group, address=address)
