"""Assembles, starts and drains one consumer group in this process.

`change_running_group` applies changed options to a running group without releasing its queues.

A broker refuses a pull with a filter that it does not know yet. So a heartbeat sends a changed filter to every broker
before the first pull with that filter. The broker may still apply the old filter to a pull in flight. That response is
discarded, and the pull is sent again from the same offset. So a message that matches both filters is handled once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.peer_requests import Reply
from rmqd.consumer.admin.member_requests import OperatorRequests
from rmqd.consumer.assembly import assemble_group, subscription_data_of
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.handler_threads import call_start_or_stop
from rmqd.consumer.health.consistency import ConsistencyCheck, check_filters, check_topic_types
from rmqd.consumer.health.group_status import GroupStatus, RecentAttempts
from rmqd.consumer.health.watchdog import Watchdog
from rmqd.consumer.hooks import Hook
from rmqd.consumer.offsets.persistence import OffsetPersistence
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.rebalance.rebalance import QueueDivision, Rebalance
from rmqd.consumer.services import ConsumeMessageService, Consumer, RetryPolicy
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, QueueSnapshot
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.handler_api.batch import LoadedHandler
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.wire.bodies.heartbeat_data import ConsumeFromWhere, ConsumerData, MessageModel, SubscriptionData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import once_in_group
from rmqd.wire.topics import retry_topic

log = structlog.get_logger(__name__)


async def change_running_group(context: GroupContext, rebalance: Rebalance, options: ConsumerOptions) -> None:
    """Apply changed options to a running group. The topics must be the same. After an error, the old options apply."""
    filters = _changed_filters(context, options)
    if filters:
        try:
            await context.announce_subscriptions(filters)
        except BaseException:
            _withdraw(context, filters)
            raise
    context.subscriptions.update(filters)
    context.options = options
    rebalance.divide_thresholds()
    context.rate_limit.change_rate(options.pull_rate_limit)
    context.service.change(options)
    if context.circuit is not None:
        context.circuit.apply_options(options.circuit)
    context.options_revision += 1
    discarded = sum(assigned.apply_options() for assigned in rebalance.assigned.values())
    filters_now = {topic: data.sub_string for topic, data in filters.items()}
    log.info(
        "group.updated",
        filters=filters_now,
        let_go=discarded,
        pull_rate_limit=options.pull_rate_limit,
        concurrency=options.concurrency,
        **({} if options.canary is None else {"canary_share": options.canary.share}),
    )


def _withdraw(context: GroupContext, filters: Mapping[str, SubscriptionData]) -> None:
    """After a failed change, send the old filters with newer versions, because brokers may know the new filters."""
    newest = max(data.sub_version for data in filters.values())
    before = subscription_data_of(context.options, newest + 1)
    context.subscriptions.update({topic: before[topic] for topic in filters})
    context.options_revision += 1
    context.client.heartbeat.send_heartbeats_soon()


def _changed_filters(context: GroupContext, options: ConsumerOptions) -> dict[str, SubscriptionData]:
    """Return the filters that `options` change. Their versions are higher, because brokers keep the highest version."""
    before = context.options.subscriptions
    now_ms = int(context.clock.wall() * 1000)
    last = max(context.subscriptions[topic].sub_version for topic in options.subscriptions)
    wanted = subscription_data_of(options, max(now_ms, last + 1))
    return {topic: wanted[topic] for topic, filter_now in options.subscriptions.items() if filter_now != before[topic]}


class PushConsumer(Consumer):
    """Consumes one group with the group's consume mode and message model.

    `run` starts the handler, joins the group and consumes until `stop`. It returns when the handlers have finished,
    their messages are committed, and the brokers have removed the member. A `stop` while the handler starts cancels the
    start. `run` raises the error that ends the group: a handler's failed start, HandlerHungError or a bug in rmqd. Call
    `run` only once.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        handler: LoadedHandler,
        client: ClientInstance,
        hooks: Sequence[Hook] = (),
        *,
        retry_policy: RetryPolicy | None = None,
        ends: Mapping[MessageQueue, int] | None = None,
        service: ConsumeMessageService | None = None,
        cache: type[ProcessQueue] = ProcessQueue,
        division: Callable[[GroupContext], QueueDivision] | None = None,
    ) -> None:
        """`assemble_group` describes `retry_policy` and the arguments after it."""
        self.group = options.group
        self._handler = handler
        self._client = client
        identity = partial(client.identity, options.group, replay=options.replay)
        self._in_group = once_for_group(options.group, identity)
        self._stopping = asyncio.Event()
        self._drain_seconds = options.shutdown_timeout_seconds
        self.context, self._division = assemble_group(
            options,
            handler,
            client,
            hooks,
            retry_policy=retry_policy,
            ends=ends,
            service=service,
            cache=cache,
            division=division,
        )
        self._rebalance = Rebalance(self.context, self._division)
        self.assigned: Mapping[MessageQueue, Assignment] = self._rebalance.assigned
        """This member's queues, including queues that are being acquired or released."""
        self._persistence = OffsetPersistence(self.context, self.assigned, self.context.idle_queues)
        results = {"handler": RecentAttempts(self.context.clock, options.group_without_namespace)}
        if handler.canary is not None:
            results["canary"] = RecentAttempts(self.context.clock, options.group_without_namespace, handler.canary)
        self._status = GroupStatus(self.context, self._rebalance, results["handler"], handler)
        self._watchdog = Watchdog(self.context, self.assigned, results)
        self._consistency = ConsistencyCheck(self.context)
        self._requests = OperatorRequests(self.context, self._rebalance, self._status)

    async def run(self) -> None:
        with structlog.contextvars.bound_contextvars(group=self.group):
            once_in_group.set(self._in_group)
            try:
                if await call_start_or_stop(self._handler.start, self.context.clock, self._stopping):
                    try:
                        await self._consume()
                    finally:
                        await call_start_or_stop(self._handler.stop, self.context.clock)
                else:
                    log.info("handler.not_started", handler=self._handler.name)
            except BaseException as error:
                self._status.record_failure(error)
                raise
        self._status.state = "stopped"

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        if shutdown_timeout_seconds is not None:
            self._drain_seconds = shutdown_timeout_seconds
        self._stopping.set()

    def force_stop(self) -> None:
        self._drain_seconds = 0.0
        self._stopping.set()
        for assigned in self.assigned.values():
            assigned.force_stop()

    async def change(self, options: ConsumerOptions) -> None:
        with structlog.contextvars.bound_contextvars(group=self.group):
            await change_running_group(self.context, self._rebalance, options)
        self._drain_seconds = options.shutdown_timeout_seconds

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        self.context.pauses.pause(scope)
        self._apply_pauses()
        log.info("group.paused", group=self.group, scope=str(scope))

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        self.context.pauses.resume(scope)
        self._apply_pauses()
        log.info("group.resumed", group=self.group, scope=str(scope))

    def _apply_pauses(self) -> None:
        context = self.context
        if context.pauses.is_whole_group_paused and not context.paused:
            context.not_paused.clear()
            context.service.pause()
        elif context.paused and not context.pauses.is_whole_group_paused:
            context.not_paused.set()
            context.service.resume()
        for assigned in self.assigned.values():
            assigned.apply_pauses()

    def snapshot(self, *, with_queues: bool = True) -> GroupSnapshot:
        return self._status.snapshot(with_queues=with_queues)

    def queue_snapshots(self) -> Iterator[QueueSnapshot]:
        return self._status.queue_snapshots()

    def assignments(self) -> list[Assignment] | None:
        """Return this member's assignments; None while a topic is not yet divided, or a queue not yet acquired."""
        assigned = list(self.assigned.values())
        return None if self._rebalance.undivided_topics or any(one.loop is None for one in assigned) else assigned

    def consumer_data(self) -> ConsumerData:
        """Return the group's part of a heartbeat."""
        return ConsumerData(
            group_name=self.group,
            message_model=MessageModel[self.context.options.announced_message_model],
            subscription_data_set=tuple((self.context.subscriptions | self.context.announced_subscriptions).values()),
            consume_from_where=ConsumeFromWhere[self.context.options.consume_from_where.upper()],
            unit_mode=self._client.options.unit_mode,
        )

    def on_consumer_ids_changed(self) -> None:
        """Called when a broker reports that members joined or left. Triggers a rebalance at once."""
        self._rebalance.on_members_changed()
        self._consistency.on_members_changed()

    async def on_request(self, command: RemotingCommand) -> Reply | None:
        """Answer a broker's request for this group."""
        once_in_group.set(
            self._in_group
        )  # the request may call the handler, and its task does not inherit the context of `run`
        return await self._requests.answer(command)

    async def _consume(self) -> None:
        context, routes = self.context, self._client.routes
        await context.store.open()
        try:
            if self._division.joins_group:
                self._client.register(self)
            routes.on_change(self._routes_changed)
            async with asyncio.TaskGroup() as tasks:
                helpers = [
                    tasks.create_task(context.service.run(), name=f"handlers:{self.group}"),
                    tasks.create_task(context.ownership.run(), name=f"ownership:{self.group}"),
                    tasks.create_task(self._persistence.run(), name=f"persist:{self.group}"),
                    tasks.create_task(self._requests.run(), name=f"operators:{self.group}"),
                    tasks.create_task(self._watchdog.run(), name=f"watchdog:{self.group}"),
                ]
                if self._division.joins_group:
                    helpers.append(tasks.create_task(self._consistency.run(), name=f"consistency:{self.group}"))
                if context.trace is not None:
                    helpers.append(tasks.create_task(context.trace.dispatcher.run(), name=f"trace:{self.group}"))
                helpers += self._division.begin(tasks, self._rebalance.start_soon)
                taking_part = tasks.create_task(self._take_part(), name=f"rebalance:{self.group}")
                await self._stopping.wait()
                if self._status.state == "starting":  # no queues yet; joining may wait for unreachable servers
                    taking_part.cancel()
                self._status.state = "draining"
                self._rebalance.release_all(self._drain_seconds)
                await asyncio.wait((taking_part,))
                for helper in helpers:
                    helper.cancel()
            await context.ownership.close(calls_left=context.service.calls_left)
        except BaseExceptionGroup:  # the group failed. A cancellation is not caught here, so it commits nothing
            await self._rebalance.abandon()
            await context.ownership.close(calls_left=context.service.calls_left)
            raise
        finally:
            routes.remove_on_change(self._routes_changed)
            await self._client.unregister(self.group)
            await context.store.close()
            if context.trace is not None:
                await context.trace.dispatcher.close()
            log.info("group.left")

    async def _take_part(self) -> None:
        """Join the group, then run its rebalance until the group has released its queues."""
        await self._join()
        self._status.state = "running"
        await self._rebalance.run()

    async def _join(self) -> None:
        """Look up the routes and register with the brokers before the first rebalance reads the member list."""
        topics = list(self.context.options.subscriptions)
        await asyncio.gather(*(self._learn_route(topic) for topic in topics))
        await check_filters(self._client, self.group, self.context.subscriptions.values())
        await check_topic_types(self._client, topics)
        errors = (await self._client.heartbeat.send_heartbeats()).values()
        is_reported = any(error is not None and error.is_reported for error in errors)
        if retry_topic(self.group) in self.context.subscriptions:
            await self._learn_route(retry_topic(self.group), is_reported=is_reported)  # created by the heartbeat

    async def _learn_route(self, topic: str, *, is_reported: bool = False) -> None:
        """Look up a topic's route. Log a failure, unless `is_reported` says that its cause is already in the log."""
        try:
            await self._client.routes.lookup(topic)
            self.context.start_offsets.record_first_route(topic)
        except RmqdError as error:
            if isinstance(error, RouteNotFoundError):
                self.context.start_offsets.record_first_route(topic)
            if not error.is_reported and not is_reported:
                log.warning("route.missing", topic=topic, error=str(error))

    def _routes_changed(self, topics: frozenset[str]) -> None:
        if topics & self.context.subscriptions.keys():
            self._rebalance.start_soon()
