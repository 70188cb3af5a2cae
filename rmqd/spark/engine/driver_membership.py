"""The driver as a member of its group: brokers list it, and members of the other engine see that Spark runs the group.

The driver does not take part in the rebalance, and does not pull. If both engines run the group, `EngineConflict`
decides which engine must leave.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from rmqd.client.api.group_requests import get_consumer_list
from rmqd.client.client_options import DEFAULT_INSTANCE, SPARK_PREFIX, unique_instance_name
from rmqd.client.heartbeat import PushedResets
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.admin.running_info_report import CLIENT_VERSION
from rmqd.consumer.assembly import subscription_data_of
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.offsets.new_group_check import BrokerStartOffsets
from rmqd.consumer.rebalance.ownership import EngineConflict
from rmqd.errors import GroupHeldElsewhereError, RmqdError, RouteNotFoundError
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.version import __version__
from rmqd.wire.bodies import group_bodies as wire
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo
from rmqd.wire.bodies.heartbeat_data import ConsumeFromWhere, ConsumerData, ConsumeType
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.client.remoting.peer_requests import Reply
    from rmqd.spark.session.group_spec import GroupSpec


GetProcessQueueInfos = Callable[[], Mapping[MessageQueue, wire.ProcessQueueInfo]]

log = structlog.get_logger(__name__)

# how often to poll for members, as on the local engine; a broker's notification causes an earlier poll
MEMBER_POLL_SECONDS: Final = 20.0
CONFLICT_POLL_SECONDS: Final = 1.0  # while another member is present
UNREGISTER_TIMEOUT_SECONDS: Final = 10.0
BROKER_WAIT_SECONDS: Final = 60.0  # how long to wait for unreachable brokers at the start; see unavailableToleranceMs


class DriverMembership:
    """The driver's membership in its group, from `join` to `leave`. After `leave`, create a new object.

    `on_reset` is called with the new offsets when a broker pushes an operator's reset. Brokers of 4.x push resets.
    Later brokers push resets only with useServerSideResetOffset=false. `held` returns the query's offset of each queue,
    for operators who request this member's running info.
    """

    def __init__(
        self,
        spec: GroupSpec,
        *,
        on_reset: Callable[[Mapping[MessageQueue, int]], None] | None = None,
        held: GetProcessQueueInfos = dict,
        clock: Clock | None = None,
    ) -> None:
        options = spec.client_options
        instance = unique_instance_name()
        if options.instance_name != DEFAULT_INSTANCE:
            instance = f"{options.instance_name}-{instance}"
        self._clock = clock or SystemClock()
        self._client = ClientInstance(replace(options, instance_name=SPARK_PREFIX + instance), clock=self._clock)
        self.group: Final = spec.group
        self.client_id: Final = self._client.client_id
        self._options = spec.options
        self._subscriptions = subscription_data_of(self._options, int(self._clock.wall() * 1000))
        self._engine_conflict = EngineConflict(self.group, self.client_id, self._clock)
        store = RemoteBrokerOffsetStore(self._client, self.group, self._clock)
        self._start_offsets = BrokerStartOffsets(self._client, self._options, self._clock, store)
        self._start_offsets.leaves_brokers_out = False  # Spark's query needs all brokers at its start
        self._on_reset = on_reset
        self._held = held
        self._resets = PushedResets()
        self._started_at = self._clock.wall()
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Join the group, and wait until this driver is its only member.

        Raises GroupHeldElsewhereError if another member does not leave, RmqdError if no broker answers. After an error
        the driver is not a member.
        """
        self._running = asyncio.create_task(self._client.run(), name=f"presence:{self.group}")
        try:
            await self._learn_routes(self._options.subscriptions)
            # the check before the first heartbeat avoids a rebalance of the other members if this driver must leave
            await self._until_alone(EngineConflict(self.group, self.client_id, self._clock))
            self._client.register(self)
            await self._client.heartbeat.send_heartbeats()
            await self._until_alone(self._engine_conflict)
        except BaseException:
            await self.leave()
            raise
        log.info("presence.joined", group=self.group, client_id=self.client_id)

    async def store_start_offsets(self) -> None:
        """Commit start offsets if the group is new, by the same rule as the local engine. Raises RmqdError.

        Call this before a query reads the group's offsets. The query then knows that a queue without an offset is new.
        """
        deadline = self._clock.monotonic() + BROKER_WAIT_SECONDS
        while True:
            try:
                await self._start_offsets.store_if_new_group()
                return
            except RmqdError as error:
                if self._clock.monotonic() >= deadline:
                    raise
                log.warning("presence.not_founded", group=self.group, error=str(error))
            await asyncio.sleep(CONFLICT_POLL_SECONDS)

    async def watch_members(self) -> None:
        """Poll for other members until cancelled. Raises GroupHeldElsewhereError if another member does not leave."""
        while True:
            self._changed.clear()
            try:
                others = self._engine_conflict.other_engine_members(await self._members())
                self._engine_conflict.may_consume(others)
            except GroupHeldElsewhereError:
                raise
            except RmqdError as error:  # the query reports that brokers are unreachable
                others = set()
                log.debug("presence.members_unknown", group=self.group, error=str(error))
            await self._until_change(CONFLICT_POLL_SECONDS if others else MEMBER_POLL_SECONDS)

    async def leave(self) -> None:
        """Unregister at the brokers, so that another member can run the group at once. Errors are only logged."""
        if self._running is None:
            return
        running, self._running = self._running, None
        self._client.stop()
        await asyncio.wait({running}, timeout=UNREGISTER_TIMEOUT_SECONDS)
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
        if not running.cancelled() and (error := running.exception()) is not None:
            log.error("presence.failed", group=self.group, exc_info=error)

    def consumer_data(self) -> ConsumerData:
        """Return the group's entry in a heartbeat, the same as for a member of the local engine."""
        return ConsumerData(
            group_name=self.group,
            subscription_data_set=tuple(self._subscriptions.values()),
            consume_from_where=ConsumeFromWhere[self._options.consume_from_where.upper()],
            unit_mode=self._client.options.unit_mode,
        )

    def on_consumer_ids_changed(self) -> None:
        """Called when a broker reports that members joined or left. Check the members now."""
        self._changed.set()

    async def on_request(self, command: RemotingCommand) -> Reply | None:
        """Called with an operator's request that a broker forwards. Return the response; None for a one-way request."""
        match command.code:
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                reset = await self._resets.read(command)
                if reset.offsets and reset.topic in self._subscriptions and self._on_reset is not None:
                    self._on_reset(reset.offsets)
                return None
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return ResponseCode.SUCCESS, "", {}, self._running_info().to_json()
        remark = f"request type {command.code} not supported: the group runs on Spark"
        return ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, {}, b""

    def _running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties={
                wire.PROP_CLIENT_VERSION: CLIENT_VERSION,
                wire.PROP_CONSUME_ORDERLY: str(self._options.consume_mode == "orderly").lower(),
                wire.PROP_CONSUME_TYPE: ConsumeType.PASSIVELY,
                wire.PROP_CONSUMER_START_TIMESTAMP: str(int(self._started_at * 1000)),
                wire.PROP_NAMESERVER_ADDR: "".join(f"{address};" for address in self._client.name_servers.addresses),
                wire.PROP_THREADPOOL_CORE_SIZE: str(self._options.concurrency),
            },
            subscription_set=tuple(self._subscriptions.values()),
            mq_table=self._held(),
            status_table={},
            user_consumer_info={
                "rmqd": __version__,
                "engine": "spark",
                "python": platform.python_version(),
                "pid": str(os.getpid()),
            },
        )

    async def _until_alone(self, conflict: EngineConflict) -> None:
        self._changed.clear()
        while not conflict.may_consume(conflict.other_engine_members(await self._members())):
            await self._until_change(CONFLICT_POLL_SECONDS)
            self._changed.clear()

    async def _until_change(self, seconds: float) -> None:
        """Wait at most `seconds` until a broker reports a change of members. Raises the client's error if it failed."""
        change = asyncio.create_task(self._changed.wait(), name=f"members:{self.group}")
        waited_for: set[asyncio.Task[Any]] = {change} if self._running is None else {change, self._running}
        try:
            await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        if self._running is not None and self._running.done():
            self._running.result()

    async def _members(self) -> set[str]:
        """Return the members in the lists of all brokers that answer. Raises RmqdError if no broker answers."""
        addresses = self._brokers()
        found = await asyncio.gather(*map(self._members_at, addresses), return_exceptions=True)
        lists = [ids for ids in found if isinstance(ids, set)]
        for error in found:
            if isinstance(error, BaseException) and (not lists or not isinstance(error, RmqdError)):
                raise error
        return set().union(*lists)

    async def _members_at(self, address: str) -> set[str]:
        remoting = self._client.remoting
        ids = await get_consumer_list(remoting, address, self.group)
        if self.client_id not in ids and self.group in self._client.groups:
            # a restarted broker does not list this driver before its next heartbeat, so send a heartbeat now
            await self._client.heartbeat.send_heartbeat_to(address)
            ids = await get_consumer_list(remoting, address, self.group)
        return set(ids)

    def _brokers(self) -> list[str]:
        routes = self._client.routes
        names = {name for topic in self._subscriptions for name in routes.broker_names(topic)}
        return [address for name in sorted(names) if (address := routes.address(name)) is not None]

    async def _learn_routes(self, topics: Iterable[str]) -> None:
        """Look up the routes of the topics. Raises the last error if no broker with any of the topics is found."""
        missing: RmqdError | None = None
        for topic in topics:
            try:
                await self._client.routes.lookup(topic)
                self._start_offsets.record_first_route(topic)
            except RmqdError as error:
                if isinstance(error, RouteNotFoundError):
                    self._start_offsets.record_first_route(topic)
                missing = error
        if missing is not None and not self._brokers():
            raise missing
