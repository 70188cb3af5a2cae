"""Sees which queues make no progress while messages wait, says why, and starts a pull loop that hangs anew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.health.broker_watch import BrokerWatch
from rmqd.consumer.health.recent_results import RecentResults
from rmqd.consumer.health.stall import Stall
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.pull.loop import PullLoop
from rmqd.consumer.stats.counters import snapshots_of
from rmqd.consumer.stats.problem import Problem
from rmqd.errors import BrokerAwayError, CircuitOpenError, RemotingError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 2.0
STALL_SECONDS: Final = 20.0
UNANSWERED_SECONDS: Final = 22.0  # a pull is held for 15 s and then answered within the broker's 5 s round
EXPIRY_SECONDS: Final = 120.0  # Java: rocketmq.client.pull.pullMaxIdleTime
REPEAT_SECONDS: Final = 600.0  # a stall that goes on, or comes again, is told so often
_MILD_CAUSES: Final = ("slow_handler", "rate_limit", "held_lock")

_Progress = tuple[ProcessQueue | None, int, int]


@dataclass(slots=True)
class _Watch:
    """One owned queue. Times are monotonic."""

    progress: _Progress | None = None
    stands_since: float = 0.0
    seen_cause: str = ""
    told_cause: str = ""
    told_at: float = 0.0
    must_tell_end: bool = False
    restarted_at: float = 0.0


class Watchdog:
    """Watches the queues of one group."""

    def __init__(
        self, context: GroupContext, assigned: Mapping[MessageQueue, AssignedQueue], results: RecentResults
    ) -> None:
        self._context = context
        self._assigned = assigned
        self._results = results
        self._watches: dict[MessageQueue, _Watch] = {}
        self._news: dict[tuple[str, str, str], dict[MessageQueue, Problem]] = {}  # by cause, topic and broker
        self._brokers = BrokerWatch(context, assigned)
        self._unserved: dict[str, float] = {}  # topics that cannot be read as they should, and since when

    async def run(self) -> None:
        """Look every other second, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.look()

    def look(self) -> None:
        """One look at every queue and topic."""
        now = self._context.clock.monotonic()
        for queue in self._watches.keys() - self._assigned.keys():
            del self._watches[queue]
        due = list(self._news)  # one look later, so that queues that stop together are told together
        for queue, assigned in self._assigned.items():
            if assigned.loop is not None:
                assigned.loop.request.look_elsewhere()
            watch = self._watches.setdefault(queue, _Watch(stands_since=now))
            assigned.status.stall = problem = self._stall(assigned, watch, now)
            assigned.status.tick(assigned.loop)
            if problem is None:
                self._tell_end(queue, watch)
                continue
            failure = assigned.failure if assigned.loop is None else assigned.loop.failure
            if failure is not None and failure.is_told and not isinstance(failure, CircuitOpenError | BrokerAwayError):
                pass
            elif self._is_news(watch, problem, now):
                key = (problem.cause, queue.topic, queue.broker_name)
                self._news.setdefault(key, {})[queue] = problem
            self._repair(assigned, watch, now)
        for key in due:
            if stalled := self._news.pop(key):
                self._tell(stalled, now)
        self._brokers.look()
        self._look_at_handler()
        for topic in self._context.subscriptions:
            if not is_retry_topic(topic):
                self._look_at_topic(topic, now)

    def _stall(self, assigned: AssignedQueue, watch: _Watch, now: float) -> Problem | None:
        """Why the queue stands still, once it has done so for long enough."""
        progress, loop = _progress(assigned), assigned.loop
        moved = progress != watch.progress
        watch.progress = progress
        if assigned.is_leaving or moved or not (loop is None or self._messages_wait(loop, now)):
            watch.stands_since, watch.seen_cause = now, ""
            return None
        if now - watch.stands_since < STALL_SECONDS + self._context.options.pull_interval_seconds:
            return None
        problem = self._seen(assigned, now - watch.stands_since, now).explain()
        # messages are between two hands for a moment: that nobody has them must be seen twice
        is_sure = problem.cause != "stalled_queue" or watch.seen_cause == problem.cause
        watch.seen_cause = problem.cause
        return problem if is_sure else assigned.status.stall

    def _messages_wait(self, loop: PullLoop, now: float) -> bool:
        """Whether the queue has something to do, or cannot even tell."""
        queue = loop.process_queue
        behind = loop.max_offset is not None and loop.max_offset > queue.next_offset
        return behind or _is_blind(loop, now) or queue.cached_count > len(queue.uncommitted)

    def _seen(self, assigned: AssignedQueue, seconds: float, now: float) -> Stall:
        context, loop, key = self._context, assigned.loop, assigned.message_queue
        if loop is None:
            return Stall(seconds=seconds, started=False, failure=assigned.failure, broker=key.broker_name)
        queue = loop.process_queue
        calls = context.service.calls()
        own = [now - call.started for call in calls if call.queue is queue]
        oldest = queue.oldest()
        address = context.client.routes.address(context.client.routes.endpoint(key))
        return Stall(
            seconds=seconds,
            stuck=loop.stuck,
            paused=assigned.is_paused,
            locked_out=not context.ownership.holds(key),
            orderly=context.options.consume_mode == "orderly",
            failure=loop.failure,
            retrying=queue.retrying,
            in_flight=queue.in_flight,
            pending=len(queue.pending),
            uncommitted=len(queue.uncommitted),
            oldest=""
            if oldest is None
            else f"message {oldest.msg_id} at offset {oldest.queue_offset} (retried {oldest.reconsume_times} times)",
            call_seconds=max(own, default=None),
            slots=context.options.concurrency,
            busy_slots=len(calls),
            longest_call_seconds=max((now - call.started for call in calls), default=0.0),
            waits_for_rate=loop.waits_for_rate,
            unanswered_seconds=_unanswered(loop, now),
            broker_down=address is not None and context.client.heartbeat.brokers_up.get(address) is False,
            broker=key.broker_name,
        )

    def _is_news(self, watch: _Watch, problem: Problem, now: float) -> bool:
        if watch.told_cause == problem.cause and now - watch.told_at < REPEAT_SECONDS:
            return False
        watch.told_cause, watch.told_at = problem.cause, now
        return True

    def _tell(self, stalled: Mapping[MessageQueue, Problem], now: float) -> None:
        """One line for all queues of one broker that began to stand still for one cause."""
        queue, problem = next(iter(stalled.items()))
        since = self._watches[queue].stands_since if queue in self._watches else now
        for told in stalled.keys() & self._watches.keys():
            self._watches[told].must_tell_end = True
        facts = {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queues": sorted(queue.queue_id for queue in stalled),
            "seconds": round(now - since),
        }
        tell_stalled(problem, facts)

    def _tell_end(self, queue: MessageQueue, watch: _Watch) -> None:
        for untold in self._news.values():
            if untold.pop(queue, None) is not None:  # it stood still for one look, which is not worth a line
                watch.told_cause = ""
        if watch.must_tell_end:
            watch.must_tell_end = False
            log.info("queue.goes_on", queue=str(queue), cause=watch.told_cause)

    def _repair(self, assigned: AssignedQueue, watch: _Watch, now: float) -> None:
        """Start a loop anew that has not turned for two minutes, though nothing that it waits for lasts so long."""
        loop = assigned.loop
        if loop is None or loop.waits_for_rate:
            return
        if now - max(loop.asked_at, loop.answered_at, loop.looked_at, watch.restarted_at) >= EXPIRY_SECONDS:
            watch.restarted_at = now
            log.error("queue.restarted", queue=str(assigned.message_queue), seconds=EXPIRY_SECONDS)
            assigned.restart()

    def _look_at_handler(self) -> None:
        """A handler that fails at everything, though its queues move: each message is sent back, and lag is low."""
        self._results.look(snapshots_of(self._context.stats))
        self._context.problems.set("handler", self._results.problem)

    def _look_at_topic(self, topic: str, now: float) -> None:
        """A topic that has no queues to read has no queue to report."""
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
            advice = "is `nameserver` right, and reachable from here? It goes on by itself"
            return Problem("no_route", f"no name server tells where {topic} is: {routes.problem}", advice)
        if route is None:
            advice = "create the topic, or take it out of the group's subscriptions; it is asked for every few seconds"
            return Problem("topic_missing", f"no name server knows topic {topic}", advice)
        closed = sorted(queues.broker_name for queues in route.queue_datas if not queues.is_readable)
        if closed:
            evidence = f"topic {topic} may not be read on {', '.join(closed)}: its permission there says so"
            return Problem("no_permission", evidence, "`mqadmin updateTopicPerm -p 6` (or 4) lets it be read")
        return None


def tell_stalled(problem: Problem, place: dict[str, object]) -> None:
    """Log that queues stand still; `place` says which, and for how long."""
    facts = {**place, "cause": problem.cause, "evidence": problem.evidence, "next": problem.next}
    if problem.cause == "paused":
        log.info("queue.stalled", **facts)
    elif problem.cause in _MILD_CAUSES:
        log.warning("queue.stalled", **facts)
    else:
        log.error("queue.stalled", **facts)


def _progress(assigned: AssignedQueue) -> _Progress:
    """What changes whenever a queue moves: it was pulled on, moved, or messages of it were finished."""
    queue = assigned.process_queue
    return (None, 0, 0) if queue is None else (queue, queue.next_offset, queue.cached_count)


def _is_blind(loop: PullLoop, now: float) -> bool:
    """Whether nothing tells if messages wait: no pull is answered, nor the question for the queue's end since."""
    silent = isinstance(loop.failure, RemotingError) or _unanswered(loop, now) > 0
    refused = loop.failure is not None and not isinstance(loop.failure, RemotingError)
    return refused or loop.stuck is not None or (silent and loop.measured_at < loop.asked_at)


def _unanswered(loop: PullLoop, now: float) -> float:
    """For how long a pull waits for an answer that should have come; 0 where none does."""
    waits = loop.asked_at > loop.answered_at and loop.held_by is None and loop.failure is None
    seconds = now - loop.asked_at if waits else 0.0
    return seconds if seconds >= UNANSWERED_SECONDS else 0.0
