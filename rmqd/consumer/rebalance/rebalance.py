"""The rebalance: finds the group's members, computes this member's share, acquires and releases queues.

There is no coordinator. In each pass every member asks a broker for the group's members, takes the topic's queues from
the route, sorts both, and computes its queues with the same allocate strategy. Members with the same lists compute
disjoint shares that cover all queues. While their lists differ, a queue may be in two shares or in none, until the
notification of the change or the next pass. Meanwhile ownership keeps two members from consuming a queue at the same
time: in an orderly group always (`queue_lock`), in other groups for a limited time (`ownership`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import ClassVar, Final, NamedTuple

import structlog

from rmqd.consumer.allocate import AllocateByConfig, AllocateError, sorted_client_ids
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.cache.flow_control import Thresholds
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.assigned_queue import RESET_VALID_SECONDS, AssignedQueue
from rmqd.consumer.rebalance.membership import ChangeNotifications, MemberList, MissingBrokerQueues
from rmqd.consumer.rebalance.ownership import EngineConflict
from rmqd.errors import GroupRefusedError
from rmqd.runtime.clock import wait_within
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic, retry_topic

log = structlog.get_logger(__name__)

_WITH_RETRIES: Final = ("clustering", "concurrently")
_KEPT: Final = "correct the strategy (docs/configuration.md); until then the member keeps its current queues"
_MISSING: Final = "correct allocate_queues, or restore the broker or the queues (`rmqd topics show {topic}`)"


class MemberShare(NamedTuple):
    """The queues of a topic that one member pulls, and the queues that it pops."""

    pulled: frozenset[MessageQueue] = frozenset()
    popped: frozenset[MessageQueue] = frozenset()


class QueueDivision:
    """Divides a topic's queues: each member computes its share by the group's allocate strategy."""

    joins_group: ClassVar[bool] = True  # whether the consumer joins the group

    def __init__(self, context: GroupContext) -> None:
        self._context = context

    def begin(self, tasks: asyncio.TaskGroup, changed: Callable[[], None]) -> list[asyncio.Task[None]]:
        """Called when the member joins. Return further tasks of the group, which the caller cancels at the end.

        `changed` triggers the next rebalance. Logs a warning if `allocate_queues` lists no queue of the retry topic,
        because this member would then never receive a retry.
        """
        options = self._context.options
        strategy = options.allocate_strategy.function
        # broadcasting groups have no retries, and orderly groups retry in place
        if (
            isinstance(strategy, AllocateByConfig)
            and (options.message_model, options.consume_mode) == _WITH_RETRIES
            and not any(is_retry_topic(queue.topic) for queue in strategy.configured_queues)
        ):
            log.warning("rebalance.retries_left_out", topic=retry_topic(options.group))
        return []

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> MemberShare | None:
        """Return this member's share of a topic's `queues`; `held` are the queues of the topic that it owns now.

        None if the strategy fails: the member keeps its queues, as in Java, and the strategy is called again later.
        """
        options, client_id = self._context.options, self._context.client.client_id
        if client_id not in client_ids:
            log.warning("rebalance.not_listed", topic=topic, client_id=client_id)
        try:
            share = options.allocate_strategy.share(options.group, client_id, queues, client_ids)
        except AllocateError as error:
            evidence = f"allocate_strategy cannot divide the queues of {topic}: {error}"
            problem = self._context.make_problem("allocate_failed", evidence, step=_KEPT)
            self._context.problems.begin(("allocate", topic), problem)
            return None
        self._context.problems.end(("allocate", topic))
        self._report_missing(topic, queues)
        return MemberShare(pulled=frozenset(share))

    def create_assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> Assignment:
        """Return the assignment for a queue of a share. This class supports only pulled queues."""
        assert not is_popped
        return AssignedQueue(self._context, message_queue)

    def _report_missing(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Report queues that the configuration lists for this member but the topic does not have."""
        strategy = self._context.options.allocate_strategy.function
        if not isinstance(strategy, AllocateByConfig):
            return
        missing = [str(queue) for queue in strategy.configured_queues if queue.topic == topic and queue not in queues]
        evidence = f"allocate_queues lists queues that {topic} does not have: {', '.join(missing)}"
        problem = self._context.make_problem("allocate_failed", evidence, topic=topic, step=_MISSING)
        self._context.problems.set(("missing", topic), problem if missing else None)


PASS_INTERVAL_SECONDS: Final = 20.0  # Java: rocketmq.client.rebalance.waitInterval
UNBALANCED_PASS_INTERVAL_SECONDS: Final = 1.0
MIN_PASS_INTERVAL_SECONDS: Final = 1.0  # Java: rocketmq.client.rebalance.minInterval


class Rebalance:
    """Runs the rebalance's passes: at the start, after a notification, a changed route or a release, and every 20 s.

    If the last pass could not divide all topics (for example because no member list was available), the next one
    follows after a second. Passes start at least one second apart.
    """

    def __init__(self, context: GroupContext, division: QueueDivision) -> None:
        self.assigned: dict[MessageQueue, Assignment] = {}  # includes queues that are being released
        self._pulled = 0  # number of pulled queues
        self._cut_short: list[Assignment] = []  # assignments whose `run` raised or was cancelled
        self.count = 0  # passes that changed the assignment
        self.undivided_topics: frozenset[str] = frozenset(context.subscriptions)  # topics without a first assignment
        self._context = context
        self._division = division
        context.move = self.reset_queue
        self._soon = asyncio.Event()
        self._ending = asyncio.Event()
        self._moves: dict[MessageQueue, tuple[int, float]] = {}  # resets of queues not held here: offset, time
        self._members = MemberList(context)
        self._notifications = ChangeNotifications(context)
        self._missing_queues = MissingBrokerQueues(context.client, context.clock)
        self._engine_conflict = EngineConflict(context.options.group, context.client.client_id, context.clock)

    @property
    def members(self) -> frozenset[str]:
        """The group's client ids in the last list from a broker; empty before the first list."""
        return self._members.last_trusted

    def start_soon(self) -> None:
        """Start the next pass at once, but at least one second after the previous one."""
        self._soon.set()

    def on_members_changed(self) -> None:
        self._notifications.on_notification()
        self._context.ownership.on_members_changed()
        self._soon.set()

    async def run(self) -> None:
        """Rebalance until `release_all` is called and all queues are released. Raises the error of a failed queue.

        Raises GroupRefusedError, after the release of all queues, if the other engine runs the group or its brokers
        cannot serve it.
        """
        cannot_run: GroupRefusedError | None = None
        async with asyncio.TaskGroup() as tasks:
            while not self._ending.is_set():
                self._soon.clear()
                began = self._context.clock.monotonic()
                try:
                    balanced = await self._pass(tasks)
                except GroupRefusedError as error:
                    cannot_run = error
                    self.release_all(self._context.options.shutdown_timeout_seconds)
                    break
                pause_seconds = PASS_INTERVAL_SECONDS if balanced else UNBALANCED_PASS_INTERVAL_SECONDS
                await self._notifications.wait(self._soon, pause_seconds, self._others_came)
                await self._keep_apart(began)
        if cannot_run is not None:
            raise cannot_run

    async def _keep_apart(self, began: float) -> None:
        """Wait until one second after the last pass began, or until `release_all`.

        Each pass requests the members from the brokers. While a deployment replaces its members, brokers notify every
        member of every change, many times a second. One pass covers all earlier notifications.
        """
        clock = self._context.clock
        await wait_within(clock, began + MIN_PASS_INTERVAL_SECONDS - clock.monotonic(), self._ending.wait())

    def release_all(self, drain_seconds: float) -> None:
        """Release every queue, and acquire no more, because the group ends. Handlers get `drain_seconds` to finish."""
        self._ending.set()
        for assigned in self.assigned.values():
            assigned.release(drain_seconds, last=True)
        self._soon.set()

    async def abandon(self) -> None:
        """Commit the finished messages of the queues whose `run` was cut short by the group's failure."""
        await asyncio.gather(*(assigned.abandon() for assigned in self._cut_short))

    def reset_queue(self, queue: MessageQueue, offset: int) -> bool:
        """Continue a queue at `offset` after an operator's reset. Return False if the queue is not held here."""
        return bool(self.reset_queues({queue: offset}))

    def reset_queues(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Continue queues at these offsets after an operator's reset. Return the queues held here.

        All members get the same reset, and each applies it to its queues. During a hand-over no member may hold the
        queue. So if this member acquires the queue within 5 s, the reset is applied then.
        """
        now = self._context.clock.monotonic()
        self._moves = {queue: move for queue, move in self._moves.items() if now - move[1] < RESET_VALID_SECONDS}
        held: dict[MessageQueue, int] = {}
        for queue, offset in offsets.items():
            self._context.refused_offsets.pop(queue, None)
            if (assigned := self.assigned.get(queue)) is not None and assigned.move_to(offset):
                held[queue] = offset
            elif queue.topic in self._context.subscriptions:
                self._moves[queue] = offset, now
        return held

    async def _pass(self, tasks: asyncio.TaskGroup) -> bool:
        """Run one pass over all topics. Return False if another one should follow soon."""
        topics, lists = list(self._context.subscriptions), await self._member_lists()
        members = frozenset[str]().union(*lists.values())
        results = await asyncio.gather(*(self._share_of(topic, lists.get(topic)) for topic in topics))
        if self._ending.is_set():
            return True
        if members and self._notifications.on_member_list(members):
            # New members divide the queues of the newest routes, so this member should use the newest routes too.
            self._context.client.routes.refresh_soon(topics)
        others = self._engine_conflict.other_engine_members(members)
        if members and not self._engine_conflict.may_consume(others):
            return False
        balanced = not others
        for topic, share in zip(topics, results, strict=True):
            if share is None:
                # a topic without queues needs no early pass: the route table polls it, and reports new queues
                balanced = balanced and (is_retry_topic(topic) or not self._context.client.routes.queues(topic))
                continue
            self.undivided_topics -= {topic}
            self._apply(tasks, topic, share)
            balanced = balanced and not self._missing_queues.needs_recheck
        return balanced

    async def _others_came(self) -> bool:
        """Return whether the members have changed, according to the first topic whose brokers respond."""
        for topic in self._context.subscriptions if self._division.joins_group else ():
            if (members := await self._members.client_ids_for(topic)) is not None:
                return self._notifications.on_member_list(members)
        return False

    async def _member_lists(self) -> dict[str, list[str]]:
        """Return the trusted lists of the group's members by topic. Topics on the same brokers share one request."""
        if not self._division.joins_group or self._context.options.message_model == "broadcasting":
            return {}
        routes, alike = self._context.client.routes, defaultdict[frozenset[str], list[str]](list)
        for topic in self._context.subscriptions:
            if routes.queues(topic):
                alike[frozenset(routes.broker_names(topic))].append(topic)
        found = await asyncio.gather(*(self._members.client_ids_for(topics[0]) for topics in alike.values()))
        lists = zip(alike.values(), found, strict=True)
        return {topic: members for topics, members in lists if members is not None for topic in topics}

    async def _share_of(self, topic: str, members: list[str] | None) -> MemberShare | None:
        """Return this member's share of a topic; None while it is unknown, or if the queues have changed meanwhile."""
        context = self._context
        queues = context.client.routes.queues(topic)
        if not queues:
            return None
        if not self._division.joins_group:
            return await self._division.share_of(topic, queues, (), ())
        if context.options.message_model == "broadcasting":
            return MemberShare(pulled=frozenset(queues))
        if members is None:
            return None
        await context.ownership.break_locks(topic, queues)
        # a Spark driver may be among the members, because it checks whether others exist; it must get no queue
        others = self._engine_conflict.other_engine_members(members)
        client_ids = sorted_client_ids([one for one in members if one not in others])
        share = await self._division.share_of(topic, queues, client_ids, self._held(topic))
        # None if the queues changed meanwhile, for example because a broker has returned
        return share if context.client.routes.queues(topic) == queues else None

    def _held(self, topic: str) -> dict[MessageQueue, Assignment]:
        return {queue: assigned for queue, assigned in self.assigned.items() if queue.topic == topic}

    def _apply(self, tasks: asyncio.TaskGroup, topic: str, share: MemberShare) -> None:
        """Acquire and release queues of a topic to match the share.

        A queue is never pulled and popped at once: one mode ends, with its last commit or acknowledgement, before the
        other starts. The end of an assignment triggers the next pass, which acquires the waiting queues.
        """
        held = self._held(topic)
        popped = {queue for queue, assigned in held.items() if assigned.is_popped}
        pulled = held.keys() - popped
        to_pop = share.popped & popped if pulled else share.popped
        to_pull = share.pulled & pulled if popped else share.pulled
        self._change(tasks, topic, to_pop, popped, is_popped=True)
        self._change(tasks, topic, to_pull | self._missing_queues.kept_queues(topic, pulled), pulled, is_popped=False)

    def _change(
        self,
        tasks: asyncio.TaskGroup,
        topic: str,
        wanted: Set[MessageQueue],
        held: Set[MessageQueue],
        *,
        is_popped: bool,
    ) -> None:
        """Acquire and release queues. A queue that returns during its release is acquired again afterwards."""
        drain_seconds, taken = self._context.options.queue_handover_timeout_seconds, sorted(wanted - held)
        given_up = [queue for queue in sorted(held - wanted) if not self.assigned[queue].is_releasing]
        for queue in given_up:
            self.assigned[queue].release(drain_seconds)
        for queue in taken:
            self.assigned[queue] = assigned = self._division.create_assignment(queue, is_popped=is_popped)
            self._pulled += not is_popped
            offset, asked_at = self._moves.pop(queue, (0, -RESET_VALID_SECONDS))
            if self._context.clock.monotonic() - asked_at < RESET_VALID_SECONDS:
                assigned.move_to(offset)
            tasks.create_task(self._hold(assigned), name=f"queue:{queue}")
        if taken or given_up:
            self.count += 1
            self.divide_thresholds()
            log.info(
                "rebalance.changed",
                topic=topic,
                **({"mode": "pop"} if is_popped else {}),
                taken=[str(queue) for queue in taken],
                given_up=[str(queue) for queue in given_up],
            )

    async def _hold(self, assigned: Assignment) -> None:
        try:
            await assigned.run()
        except BaseException:
            self._cut_short.append(assigned)
            raise
        finally:
            del self.assigned[assigned.message_queue]
            self._context.idle_queues.pop(assigned.message_queue, None)
            self._pulled -= not assigned.is_popped
            self.divide_thresholds()
            self.start_soon()

    def divide_thresholds(self) -> None:
        """Divide the group's cache limits among the queues that it pulls."""
        self._context.thresholds = Thresholds.per_queue(self._context.options, self._pulled)
