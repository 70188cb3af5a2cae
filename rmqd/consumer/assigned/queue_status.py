"""The loop and the status of an assignment, as the rest of the group sees them.

The status has the state, current figures, and the cause of a stall, which is found from local facts without requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rmqd.consumer.cache.flow_control import Reason
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.health.causes import CAUSES, STUCK, Problem, explain_failure, found
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import (
    BrokerError,
    FilterDataNotExistError,
    FilterDataNotLatestError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
)
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import topic_of_pop_retry

# The broker has no filter of this group, or an outdated one. A heartbeat sends the current one.
_SUBSCRIPTION_AWAY: Final = (
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    FilterDataNotExistError,
    FilterDataNotLatestError,
)


class RequestLoop(ABC):
    """The requests for messages of one assignment. `asked_at` and `answered_at` are monotonic.

    `begun_at` is when its cache was created (Unix seconds): at the acquisition, or when an operator moved the queue.
    """

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.held_by: Reason | None = None  # why no request is sent now
        self.failure: RmqdError | None = None  # error of the last request
        self.answered_at = self.asked_at = context.clock.monotonic()
        self.begun_at = context.clock.wall()
        self._context = context
        self._message_queue = message_queue

    @property
    @abstractmethod
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The caches of the queues with messages."""

    @property
    @abstractmethod
    def is_behind(self) -> bool:
        """Whether messages wait on the broker, by its last response."""

    @property
    def is_paused(self) -> bool:
        """Whether an operator paused the whole assignment."""
        return self._context.pauses.hold(self._message_queue)

    @abstractmethod
    def take_over_options(self) -> int:
        """Apply changed options at once. Returns how many cached messages the new filter discards."""

    def apply_pauses(self) -> None:
        """Apply the operator's pauses to the caches."""
        self._context.idle.pop(self._message_queue, None)
        for process_queue in self.process_queues:
            if self.is_paused or self._context.pauses.hold(process_queue.message_queue):
                process_queue.pause()
            elif process_queue.is_paused:
                process_queue.resume()
                self._context.service.submit(process_queue)

    def _bring_up_to_date(self, error: RmqdError) -> bool:
        """Send a heartbeat soon if the broker lacked our subscription. Refresh a route that may be stale.

        Returns whether the route may be stale.
        """
        client = self._context.client
        if isinstance(error, _SUBSCRIPTION_AWAY):
            client.heartbeat.beat_soon()
        is_stale = not isinstance(error, BrokerError) or error.stale_route
        if is_stale:
            client.routes.refresh_soon([self._message_queue.topic])
        return is_stale


SLOW_CALL_SECONDS: Final = 10.0  # only a longer call can be the cause of a stall


@dataclass(frozen=True, slots=True, kw_only=True)
class StallFacts:
    """The facts about an assignment without progress while messages wait. Durations are in seconds.

    Several of these can be true at once, and some explain others: if an operator paused a queue, idle handlers are not
    a cause. `explain` checks them in a fixed order and returns the first cause that applies.
    """

    started: bool = True  # whether it is acquired, and its loop pulls or pops
    stuck: Problem | None = None  # why nothing is pulled until an operator acts
    paused: bool = False
    circuit: Problem | None = None  # the circuit is open, because handler calls fail
    locked_out: bool = False  # another member has the queue's lock
    in_place: bool = False  # failed messages are retried in place
    kept: Problem | None = None  # why messages cannot be claimed or sent back, according to the service
    failure: RmqdError | None = None  # error of the last pull or acquisition
    retrying: int = 0  # postponed messages
    in_flight: int = 0  # batches in flight, or being settled
    pending: int = 0  # messages that no handler has yet
    uncommitted: int = 0  # messages that an orderly handler has finished but not committed
    oldest: str = ""  # the first unfinished message: "message ID at offset N (retried M times)"
    oldest_id: str = ""
    call_seconds: float | None = None  # longest handler call of this queue within its deadline
    slots: int = 1
    busy_slots: int = 0
    longest_call_seconds: float = 0.0  # across all queues
    waits_for_rate: bool = False
    unanswered_seconds: float = 0.0  # time since the current pull was sent, if it has no response yet
    broker_down: bool = False
    broker: str = ""
    queue_id: int = 0
    group: str = "GROUP"  # group name in the suggested commands
    topic: str = "TOPIC"

    def explain(self) -> Problem:
        """Return the first cause that applies. Causes come before their consequences."""
        if self.stuck is not None:
            return self.stuck
        if self.paused:
            return self._found("paused", "an operator paused it")
        if self.circuit is not None and (self.in_flight or self.retrying or self.pending):
            return self.circuit
        if self.locked_out or (not self.started and self.failure is None):
            return self._found("held_lock", _HELD_LOCK)
        if self.failure is not None:
            return explain_failure(self.failure, self.group, self.topic)
        if self.in_flight or self.retrying or self.pending:
            return self._explain_messages()
        if self.uncommitted:
            return self._found(
                "slow_handler", f"{self.uncommitted} messages are handled, but the handler does not commit them"
            )
        return self._explain_pulls()

    def _explain_messages(self) -> Problem:
        if self.kept is not None:
            return self.kept
        if self.call_seconds is not None and self.call_seconds >= SLOW_CALL_SECONDS:
            return self._found(
                "slow_handler",
                f"a handler call has been running for {self.call_seconds:.0f} s; first unfinished: {self.oldest}",
            )
        if self.in_place and self.in_flight and self.call_seconds is None and not self.retrying:
            return self._found(
                "slow_handler",
                f"a handler call is past its deadline and has not returned; it has {self.oldest}",
            )
        if self.in_place and (self.in_flight or self.retrying):
            return self._found("poison_message", f"the handler fails repeatedly at {self.oldest}", self._skip_oldest())
        if self.retrying or (self.in_flight and self.call_seconds is None):
            told = f"no broker accepts retries or dead letters of failed messages; first unfinished: {self.oldest}"
            return self._found("retry_refused", told)
        if self.busy_slots >= self.slots:
            longest = f"the longest call has been running for {self.longest_call_seconds:.0f} s"
            return self._found("slow_handler", f"all {self.slots} slots of the handler are busy, {longest}")
        if self.in_flight:
            return self._found(
                "slow_handler", f"{self.in_flight} batches are in flight; first unfinished: {self.oldest}"
            )
        return self._found("stalled_queue", _STALLED)

    def _explain_pulls(self) -> Problem:
        if self.waits_for_rate:
            return self._found("rate_limit", "the next pull waits for pull_rate_limit")
        if self.unanswered_seconds > 0 and self.broker_down:
            told = f"broker {self.broker} responds neither to heartbeats nor to pulls"
            return self._found("broker_unreachable", told)
        if self.unanswered_seconds > 0:
            told = f"a pull was sent {self.unanswered_seconds:.0f} s ago and has no response"
            step = "rmqd restarts the pull loop automatically; if that does not help, check the broker's log"
            return found("stalled_queue", told, step=step)
        return self._found("stalled_queue", _STALLED)

    def _skip_oldest(self) -> str:
        return (
            f"`rmqd try {{group}} --id {self.oldest_id}` runs the handler with the message alone and commits nothing; "
            "if it fails, correct the handler, or skip the message with `rmqd offsets reset {group} {topic} --skip 1 "
            f"--broker {self.broker} --queue {self.queue_id}`"
        )

    def _found(self, cause: str, evidence: str, step: str = "") -> Problem:
        return found(cause, evidence, group=self.group, topic=self.topic, step=step, slots=self.slots)


_HELD_LOCK: Final = "another member has the queue's lock, although it is assigned to this member"
_STALLED: Final = "messages wait and nothing holds the queue back, but it makes no progress"


class AssignmentStatus(ABC):
    """The state of an assignment, and the time of its last change. Its loop is None until it is acquired."""

    loop: RequestLoop | None

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.stall: Problem | None = None  # set by the watchdog
        self.since = context.clock.wall()  # Unix seconds; when it entered its state
        self._context = context
        self._message_queue = message_queue
        self._state = "waiting"

    @property
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The caches of the queues with messages; empty until the assignment is acquired."""
        return () if self.loop is None else self.loop.process_queues

    @property
    def failure(self) -> RmqdError | None:
        """The last error, if there was no success since."""
        return None if self.loop is None else self.loop.failure

    @property
    def turned_at(self) -> float | None:
        """When the loop last completed an iteration (monotonic); None if that does not indicate a problem."""
        return None

    @abstractmethod
    def progress(self) -> object:
        """Return a value that changes with every progress. The watchdog compares it with the last one."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is work, or that cannot be determined."""

    def is_quiet(self, now: float) -> bool:
        """Whether it clearly waits for new messages, so that no further check is needed. `now` is monotonic."""
        return False

    @abstractmethod
    def measure(self) -> Coroutine[Any, Any, None] | None:
        """Query the group's lag from the broker; None if the responses to pulls already contain it."""

    def tick(self) -> None:
        """Record when the state changed. Called about every second."""
        state = self._current_state()
        if state != self._state:
            self._state, self.since = state, self._context.clock.wall()

    def snapshot(self) -> QueueSnapshot | None:
        """Return the known values; None if there are none yet."""
        self.tick()
        context, queue, process_queues = self._context, self._message_queue, self.process_queues
        stats, cached = context.stats[queue.topic], sum(one.cached_count for one in process_queues)
        waiting = sum(one.waiting_count + one.retrying for one in process_queues)
        # a pop retry topic counts as the group's retry topic, because both have queues of the same number
        is_pop_retry = topic_of_pop_retry(context.options.group, queue.topic) is not None
        return QueueSnapshot(
            topic=queue.without(context.options.namespace).topic if is_pop_retry else stats.topic,
            is_retry=stats.is_retry,
            broker=queue.broker_name,
            queue=queue.queue_id,
            state=self._state,
            since=self.since,
            cached=cached,
            handling=max(0, cached - waiting),
            cached_bytes=sum(one.cached_bytes for one in process_queues),
            stall=self.stall,
        )

    def explain(self) -> Problem:
        """Return the cause of a stall from the current facts."""
        return self._seen().explain()

    def _seen(self) -> StallFacts:
        context, queue, process_queues, oldest = self._context, self._message_queue, self.process_queues, self._oldest()
        if self.loop is None:
            return replace(self._named(), started=False, failure=self.failure)
        calls, now = context.service.calls(), context.clock.monotonic()
        return replace(
            self._named(),
            paused=context.pauses.hold(queue),
            circuit=None if context.circuit is None else context.circuit.problem(context.options.plain_group),
            locked_out=not context.ownership.holds(queue),
            in_place=context.options.repeats_in_place,
            kept=next(filter(None, map(context.service.explain, process_queues)), None),
            failure=self.failure,
            retrying=sum(one.retrying for one in process_queues),
            in_flight=sum(one.in_flight for one in process_queues),
            pending=sum(one.waiting_count for one in process_queues),
            uncommitted=sum(len(one.uncommitted) for one in process_queues),
            oldest=""
            if oldest is None
            else f"message {oldest.msg_id} at offset {oldest.queue_offset} (retried {oldest.reconsume_times} times)",
            oldest_id="" if oldest is None else oldest.msg_id,
            call_seconds=max(
                (now - call.started for call in calls if call.process_queue in process_queues), default=None
            ),
            slots=context.service.concurrency,
            busy_slots=len(calls),
            longest_call_seconds=max((now - call.started for call in calls), default=0.0),
        )

    def _named(self) -> StallFacts:
        """Return StallFacts with the names for evidence and next steps."""
        options = self._context.options
        queue, group = self._message_queue.without(options.namespace), options.plain_group
        return StallFacts(broker=queue.broker_name, queue_id=queue.queue_id, group=group, topic=queue.topic)

    def _current_state(self) -> str:
        loop, process_queues = self.loop, self.process_queues
        if (state := self._cannot_be_consumed()) is not None:
            return state
        if loop is None:
            return "waiting"
        if loop.held_by is not None:
            return "flow_controlled"
        if any(one.retrying for one in process_queues):
            return "retrying"
        if any(one.in_flight or one.pending for one in process_queues):
            return "handling"
        return "pulling" if loop.is_behind else "waiting"

    def _cannot_be_consumed(self) -> str | None:
        if self.stall is not None and STUCK in CAUSES[self.stall.cause].marks:
            return "stuck"
        if self._context.pauses.hold(self._message_queue) or self._waits_for_circuit():
            return "paused"
        return None if self._context.ownership.holds(self._message_queue) else "locked_out"

    def _waits_for_circuit(self) -> bool:
        """Whether messages wait because the circuit is not closed."""
        circuit = self._context.circuit
        return circuit is not None and circuit.state != "closed" and any(one.pending for one in self.process_queues)

    def _oldest(self) -> Message | None:
        """The unfinished message that was stored first."""
        unfinished = [message for one in self.process_queues if (message := one.oldest()) is not None]
        return min(unfinished, key=lambda message: message.store_timestamp, default=None)

    def _lag_seconds(self, lag: int | None, last_stored_ms: int = 0) -> float | None:
        """Return the age of the oldest waiting message; if none is cached, of the last one seen."""
        if lag == 0:
            return 0.0
        oldest = self._oldest()
        stored_ms = last_stored_ms if oldest is None else oldest.store_timestamp
        return max(0.0, self._context.clock.wall() - stored_ms / 1000) if stored_ms else None
