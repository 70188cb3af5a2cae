"""The watchdog finds stalled queues, whose messages wait without progress, and reports the cause.

Every other second it compares each assignment's progress (`Assignment.progress`) with the previous value. If the
value has not changed for a while although there is work, the assignment determines the cause (`explain_stall`). The
watchdog logs the cause and keeps it as the assignment's stall until there is progress again. Its only repair: a loop
that completed no iteration for two minutes is restarted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.health.causes import CAUSES, MILD, Problem, make_problem
from rmqd.consumer.health.group_problems import missing_topic_problem, unreadable_topic_problem
from rmqd.consumer.health.group_status import RecentAttempts
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.stats.counters import snapshots_of
from rmqd.errors import BrokerUnknownError, CircuitOpenError, RmqdError, SlaveOffsetMissingError
from rmqd.runtime.clock import wait_for_tick
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

BROKER_DOWN_SECONDS: Final = 4.0  # a broker that is down for less time has probably only lost a connection


class BrokerWatch:
    """Watches the brokers of one group. A broker that is down is a problem of the group until it responds again."""

    def __init__(self, context: GroupContext, assigned: Mapping[MessageQueue, Assignment]) -> None:
        self._context = context
        self._assigned = assigned
        self._since: dict[str, float] = {}  # broker name -> since when it is down (monotonic)
        self._seen: object = None  # the version of the routes and the number of queues at the last complete check

    def is_unchanged(self) -> bool:
        """Return whether all brokers respond, and neither routes nor queues have changed since the last `poll`."""
        routes = self._context.client.routes
        is_same = self._seen == (routes.version, len(self._assigned))
        return is_same and not self._since and not any(map(self._why_down, routes.brokers()))

    def poll(self) -> None:
        """Check every broker of this member's pulled queues once."""
        if self.is_unchanged():
            return
        routes, now = self._context.client.routes, self._context.clock.monotonic()
        self._seen = routes.version, len(self._assigned)
        pulled = (queue for queue, one in self._assigned.items() if not one.is_popped)
        held = routes.by_endpoint(pulled)
        for name in self._since.keys() - held.keys():
            del self._since[name]
            self._context.problems.end(("broker", name))
        for name, queues in held.items():
            reason = self._why_down(name)
            if reason is None:
                self._since.pop(name, None)
                self._context.problems.end(("broker", name))
            elif now - self._since.setdefault(name, now) >= BROKER_DOWN_SECONDS:
                problem = _problem(name, reason, [self._assigned[queue] for queue in queues])
                self._context.problems.begin(("broker", name), problem)

    def _why_down(self, name: str) -> str | None:
        """Return why a broker's master is down; None if it is not, as far as is known."""
        client = self._context.client
        master = client.routes.master(name)
        if master is None:
            return f"no name server has a route to the master of broker {name}"
        reason = client.remoting.breakers.reason(master)
        return None if reason is None else f"the master of broker {name} ({master}) does not answer: {reason}"


def _problem(name: str, reason: str, queues: list[Assignment]) -> Problem:
    slaves = {
        loop.request.address
        for assigned in queues
        if isinstance(loop := assigned.loop, PullLoop) and not loop.request.at_master and loop.failure is None
    }
    slave = next(iter(slaves), None)
    they_do = f"are read from the slave {slave}" if slave is not None else "wait for the broker"
    return make_problem("broker_unreachable", f"{reason}; {len(queues)} queues of this member {they_do}")


log = structlog.get_logger(__name__)

CHECK_INTERVAL_SECONDS: Final = 2.0
CHECKS_PER_IDLE_CHECK: Final = 5  # every fifth check includes idle assignments; an idle group is checked only then
ASSIGNMENTS_PER_TURN: Final = 200  # a check handles so many, in some milliseconds, before other tasks may run
STALL_SECONDS: Final = 20.0  # a queue is stalled after this time without progress
LOOP_EXPIRY_SECONDS: Final = 120.0  # Java: rocketmq.client.pull.pullMaxIdleTime
STALL_LOG_INTERVAL_SECONDS: Final = 600.0  # interval of log lines about a stall that lasts or recurs


@dataclass(slots=True)
class _Watch:
    """The watchdog's record of one assignment. Times are monotonic."""

    progress: object = None
    unchanged_since: float = 0.0
    seen_cause: str = ""
    reported_cause: str = ""
    reported_at: float = 0.0
    must_report_end: bool = False
    restarted_at: float = 0.0


class Watchdog:
    """Watches the assignments and topics of one group."""

    def __init__(
        self, context: GroupContext, assigned: Mapping[MessageQueue, Assignment], results: Mapping[str, RecentAttempts]
    ) -> None:
        """`results` are the recent attempts of the handler and its canary, by their key in `context.problems`."""
        self._context = context
        self._assigned = assigned
        self._results = results
        self._watches: dict[MessageQueue, _Watch] = {}
        self._news: dict[tuple[str, str, str], dict[MessageQueue, Problem]] = {}  # key: cause, topic, broker name
        self._brokers = BrokerWatch(context, assigned)
        self._replicas: object = None  # at the last check: version of the routes, addresses that are down
        self._turn = 0
        self._may_pass_over = False  # whether idle assignments need no complete check
        self._attempts = 0  # number of attempts at the last check
        self._unserved: dict[str, float] = {}  # unreadable topics -> when they became unreadable

    async def run(self) -> None:
        """Check every other second, until cancelled."""
        while True:
            await wait_for_tick(self._context.clock, CHECK_INTERVAL_SECONDS, self._begin_check)
            await self._check()

    async def poll(self) -> None:
        """Check every assignment and topic once. In an idle group, only every fifth call does this."""
        if not self._begin_check():
            await self._check()

    def _begin_check(self) -> bool:
        """Begin a check. Return True if it may end here: all assignments are idle, and nothing else has changed."""
        context, assigned = self._context, self._assigned
        self._may_pass_over = self._replicas_stay() and not self._news
        self._turn = (self._turn + 1) % CHECKS_PER_IDLE_CHECK
        return bool(
            self._turn
            and self._may_pass_over
            and assigned
            and len(context.idle_queues) == len(assigned)
            and self._count_attempts() == self._attempts
            and self._brokers.is_unchanged()
            and not (self._unserved or any(context.problems))
        )

    def _count_attempts(self) -> int:
        return sum(stats.attempts for stats in dict.fromkeys(self._context.stats.values()))

    async def _check(self) -> None:
        now = self._context.clock.monotonic()
        due = list(self._news)  # stalls are logged one check later, so that queues that stall together share a line
        may_pass_over, idle = self._may_pass_over, self._context.idle_queues
        is_complete = self._turn == 0 or not may_pass_over
        due_queues = [queue for queue in self._assigned if is_complete or queue not in idle]
        attempts = self._count_attempts()
        self._brokers.poll()
        for number, queue in enumerate(due_queues, 1):
            if number % ASSIGNMENTS_PER_TURN == 0:
                await asyncio.sleep(0)
            watch, assigned = self._watches.get(queue), self._assigned.get(queue)
            if assigned is None:  # released meanwhile
                continue
            if not (is_idle := assigned.is_idle(now)):
                idle.pop(queue, None)  # the queue is not idle any more, for example because its pull is overdue
            if watch is None:
                watch = self._watches[queue] = _Watch(unchanged_since=now)
            elif may_pass_over and is_idle:
                watch.unchanged_since, watch.seen_cause = now, ""
                continue
            assigned.switch_replica_if_down()
            assigned.stall = problem = self._stall(assigned, watch, now)
            assigned.record_state_change()
            if problem is None:
                self._report_end(queue, watch)
                continue
            if not _is_reported(assigned.failure) and self._is_news(watch, problem, now):
                key = (problem.cause, queue.topic, queue.broker_name)
                self._news.setdefault(key, {})[queue] = problem
            self._repair(assigned, watch, now)
        if len(self._watches) > len(self._assigned):
            for queue in self._watches.keys() - self._assigned.keys():
                del self._watches[queue]
        for key in due:
            if stalled := self._news.pop(key):
                self._report(stalled, now)
        self._check_handler(attempts)
        for topic in self._context.subscriptions:
            if not is_retry_topic(topic):
                self._check_topic(topic, now)

    def _replicas_stay(self) -> bool:
        """Return whether no replica was added, was removed, failed or recovered since the last check."""
        client, before = self._context.client, self._replicas
        down = frozenset(filter(client.remoting.is_down, client.routes.broker_addresses()))
        self._replicas = client.routes.version, down
        return self._replicas == before

    def _stall(self, assigned: Assignment, watch: _Watch, now: float) -> Problem | None:
        """Return the cause of a stall if the assignment has made no progress for long enough."""
        progress = assigned.progress()
        moved = progress != watch.progress
        watch.progress = progress
        is_batching = self._is_batching(assigned)
        if is_batching:  # a pull that hangs is hidden by the open calls, so check for it here
            self._repair(assigned, watch, now)
        if assigned.is_releasing or moved or is_batching or not assigned.has_work():
            watch.unchanged_since, watch.seen_cause = now, ""
            return None
        if now - watch.unchanged_since < self._stall_seconds():
            return None
        problem = assigned.explain_stall()
        # `stalled_queue` must be seen twice: messages that move to the pipeline's next step are briefly in neither step
        is_sure = problem.cause != "stalled_queue" or watch.seen_cause == problem.cause
        watch.seen_cause = problem.cause
        return problem if is_sure else assigned.stall

    def _is_batching(self, assigned: Assignment) -> bool:
        """Return whether this queue makes no progress because the handler keeps calls open to collect messages."""
        service = self._context.service
        has_calls = any(call.process_queue in assigned.process_queues for call in service.calls())
        return has_calls and service.keeps_calls_open and assigned.explain_stall().cause == "slow_handler"

    def _stall_seconds(self) -> float:
        """Return after how many seconds without progress a queue is stalled. Configured waits are included."""
        options = self._context.options
        return STALL_SECONDS + options.pull_interval_seconds + options.consume_message_batch_max_wait_seconds

    def _is_news(self, watch: _Watch, problem: Problem, now: float) -> bool:
        if watch.reported_cause == problem.cause and now - watch.reported_at < STALL_LOG_INTERVAL_SECONDS:
            return False
        watch.reported_cause, watch.reported_at = problem.cause, now
        return True

    def _report(self, stalled: Mapping[MessageQueue, Problem], now: float) -> None:
        """Log one line for `stalled`: queues of one topic and broker with the same cause."""
        queue, problem = next(iter(stalled.items()))
        since = self._watches[queue].unchanged_since if queue in self._watches else now
        for one in stalled.keys() & self._watches.keys():
            self._watches[one].must_report_end = True
        level = logging.WARNING if MILD in CAUSES[problem.cause].marks else logging.ERROR
        log.log(
            logging.INFO if problem.cause == "paused" else level,
            "queue.stalled",
            topic=queue.topic,
            broker=queue.broker_name,
            queues=sorted(queue.queue_id for queue in stalled),
            seconds=round(now - since),
            cause=problem.cause,
            evidence=problem.evidence,
            next=problem.next,
        )

    def _report_end(self, queue: MessageQueue, watch: _Watch) -> None:
        for unreported in self._news.values():
            if unreported.pop(queue, None) is not None:  # a stall that only one check has seen is not logged
                watch.reported_cause = ""
        if watch.must_report_end:
            watch.must_report_end = False
            log.info("queue.recovered", queue=str(queue), cause=watch.reported_cause)

    def _repair(self, assigned: Assignment, watch: _Watch, now: float) -> None:
        """Restart a loop that completed no iteration for two minutes. A working loop never waits that long."""
        turned_at = assigned.last_iteration_at
        if turned_at is not None and now - max(turned_at, watch.restarted_at) >= LOOP_EXPIRY_SECONDS:
            watch.restarted_at = now
            log.error("queue.restarted", queue=str(assigned.message_queue), seconds=LOOP_EXPIRY_SECONDS)
            assigned.restart_loop()

    def _check_handler(self, attempts: int) -> None:
        """Report a failing handler or canary. The queues do not stall, because every failed message is sent back."""
        context = self._context
        group = context.options.group_without_namespace
        circuit = None if context.circuit is None else context.circuit.problem(group)
        for name, results in self._results.items():
            if attempts == self._attempts:
                results.poll_unchanged()
            else:
                results.poll(snapshots_of(context.stats))
            problem = results.problem
            if circuit is not None and problem is not None and problem.cause == "failing_handler":
                problem = None  # the circuit's problem covers it, and a pause would save no attempts
            context.problems.set(name, problem)
        self._attempts = attempts
        context.problems.set("circuit", circuit)
        context.problems.set("service", context.service.problem)
        context.problems.set("offsets", context.store.problem)
        context.problems.set("refused", self._refused_problem())

    def _refused_problem(self) -> Problem | None:
        """Return a problem if brokers refused a failed message at least twice, as a retry or as a dead letter."""
        context = self._context
        for message in [message for message in context.refused_messages if not message.is_cached]:
            del context.refused_messages[message]
        lasting = [(message, *refusals) for message, refusals in context.refused_messages.items() if refusals[0] > 1]
        if not lasting:
            return None
        message, times, reason = min(lasting, key=lambda one: one[0].queue_offset)
        queue, offset = message.message_queue, message.queue_offset
        evidence = (
            f"no broker accepts message {message.msg_id}, {queue} offset {offset} (refused {times} times): {reason}; "
            f"{len(lasting) - 1} more messages are refused"
        )
        place = f"--broker {queue.broker_name} --queue {queue.queue_id}"
        step = (
            f"rmqd retries every few seconds; `rmqd offsets reset {{group}} '{queue.topic}' --to {offset + 1} {place}` "
            "skips the message, and handles the messages after it again"
        )
        return context.make_problem("retry_refused", evidence, step=step)

    def _check_topic(self, topic: str, now: float) -> None:
        """Report a topic without a route, or unreadable on a broker: it has no queues there that could stall."""
        problem = self._topic_problem(topic)
        if problem is None:
            self._unserved.pop(topic, None)
            self._context.problems.end(("topic", topic))
        elif now - self._unserved.setdefault(topic, now) >= STALL_SECONDS:
            self._context.problems.begin(("topic", topic), problem)

    def _topic_problem(self, topic: str) -> Problem | None:
        routes = self._context.client.routes
        route = routes.route(topic)
        if route is None and routes.problem is not None:
            step = "check that `nameserver` is correct and reachable from here; the group continues automatically"
            evidence = f"no name server returns a route for {topic}: {routes.problem}"
            return self._context.make_problem("no_route", evidence, topic=topic, step=step)
        if route is None:
            return missing_topic_problem(topic)
        closed = sorted(queues.broker_name for queues in route.queue_datas if not queues.is_readable)
        return unreadable_topic_problem(topic, closed) if closed else None


def _is_reported(failure: RmqdError | None) -> bool:
    """Return whether the client's report of this error is enough. An unavailable broker is reported here too."""
    is_reported = failure is not None and failure.is_reported
    return is_reported and not isinstance(failure, CircuitOpenError | BrokerUnknownError | SlaveOffsetMissingError)
