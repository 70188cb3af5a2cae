"""A group's snapshot, collected from its parts on request, and the recent results of its handler."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from rmqd.consumer.canary import Canary
from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.handler_failures import HandlerHungError
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.consumer.health.group_problems import FORBIDDEN_PREFIX, FORBIDDING_CAUSES
from rmqd.consumer.rebalance.rebalance import Rebalance
from rmqd.consumer.stats.counters import rates_between, snapshots_of, totals_of
from rmqd.consumer.stats.stats_snapshot import (
    HANDLER_RATES,
    MAX_MEMBERS,
    GroupSnapshot,
    LastError,
    QueueSnapshot,
    TopicSnapshot,
)
from rmqd.handler_api.batch import LoadedHandler, leaf_exceptions
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import describe
from rmqd.wire.topics import is_retry_topic

ENGINE = "local"


class GroupStatus:
    """The group's state, its failure, and its readiness."""

    def __init__(
        self, context: GroupContext, rebalance: Rebalance, results: RecentAttempts, handler: LoadedHandler
    ) -> None:
        self.state = "starting"
        self._context = context
        self._rebalance = rebalance
        self._results = results
        self._processes, self._canary = handler.processes, handler.canary
        self._failure: str | None = None
        self._hung = False

    def record_failure(self, error: BaseException) -> None:
        """Called when the group ends because of `error`."""
        causes = leaf_exceptions(error)
        self.state = "failed"
        self._failure = "; ".join(describe(cause) for cause in causes)
        self._hung = any(isinstance(cause, HandlerHungError) for cause in causes)

    def snapshot(self, *, with_queues: bool = True) -> GroupSnapshot:
        """Return all figures of the group at one moment, with or without the figures of its queues."""
        context, assigned, circuit = self._context, self._rebalance.assigned, self._context.circuit
        reason, topics = self._not_ready(), snapshots_of(context.stats)
        counts = Counter(message_queue.topic for message_queue in assigned)
        return GroupSnapshot(
            name=context.options.group,
            engine=ENGINE,
            message_model=context.options.message_model,
            state=self.state,
            paused=context.paused,
            pauses=context.pauses.scopes,
            client_id=context.client.client_id,
            failure=self._failure,
            ready=reason is None,
            not_ready_reason=reason,
            topics=topics,
            queues=tuple(self.queue_snapshots()) if with_queues else (),
            assigned={topic: counts[topic] for topic in context.subscriptions if not is_retry_topic(topic)},
            rebalances=self._rebalance.count,
            handover_timeouts=context.ownership.timeouts,
            commit_failures=context.store.failures,
            hook_failures={} if context.hooks is None else dict(context.hooks.failures),
            left_out_by_hooks={} if context.hooks is None else dict(context.hooks.rejected_counts),
            handler_hung=self._hung,
            handler_processes=None if self._processes is None else self._processes.running,
            handler_processes_lost={} if self._processes is None else dict(self._processes.lost),
            problems=tuple(context.problems),
            rates=self._results.rates(topics),
            concurrency=context.service.concurrency,
            circuit=None if circuit is None or not circuit.options.can_open else circuit.snapshot(),
            trace_records={} if context.trace is None else dict(context.trace.dispatcher.counts),
            canary=None if self._canary is None else self._canary.snapshot(),
            members=tuple(sorted(self._rebalance.members)[:MAX_MEMBERS]),
            member_count=len(self._rebalance.members),
        )

    def queue_snapshots(self) -> Iterator[QueueSnapshot]:
        """Yield the queues one by one, each with its figures of that moment. Queues released meanwhile are skipped."""
        assigned, idle = self._rebalance.assigned, self._context.idle_queues
        for message_queue, entry in list(assigned.items()):
            queue = idle.get(message_queue)
            if queue is None and assigned.get(message_queue) is entry:
                queue = entry.snapshot()
                if message_queue in idle:
                    idle[message_queue] = queue
            if queue is not None:
                yield queue

    def _not_ready(self) -> str | None:
        options = self._context.options
        refusal = self._context.client.remoting.security.refusals.reason_for_group(
            (options.group, *options.subscriptions)
        )
        disabled = (f"{one.evidence}; {one.next}" for one in self._context.problems if one.cause in FORBIDDING_CAUSES)
        kept = refusal or next(disabled, None)
        if kept is not None and self.state in ("starting", "running"):
            return f"group {options.group} {FORBIDDEN_PREFIX}{kept}"
        if self.state != "running":
            return f"group {self._context.options.group} is {self.state}"
        missing = sorted(topic for topic in self._rebalance.undivided_topics if not is_retry_topic(topic))
        if missing:
            undivided = [one.evidence for one in self._context.problems if one.cause == "allocate_failed"]
            why = self._context.client.routes.problem or "; ".join(undivided)
            waits = f"group {self._context.options.group} waits for its first queues of {', '.join(missing)}"
            return f"{waits}: {why}" if why else waits
        return None


RATE_WINDOW_SECONDS: Final = 60.0
POLL_SECONDS: Final = 2.0
MIN_FAILING_SECONDS: Final = 20.0  # a service that restarts is available again sooner
MIN_ATTEMPTS: Final = 3
FAILING_SHARE: Final = 0.9  # at a smaller share of failed attempts, the row of failed attempts ends
RECOVERED_SHARE: Final = 0.5  # the same for a canary; at a smaller share, the problem of any group ends


class RecentAttempts:
    """Watches the attempts of one group's handler, or of its canary.

    Call `poll` about every POLL_SECONDS with the group's counters.

    The problem begins after at least MIN_ATTEMPTS failed attempts in a row, over at least MIN_FAILING_SECONDS. The row
    ends when more than one attempt in ten succeeds, or more than half for a canary. The problem ends when more than
    half of the attempts succeed. Without messages the problem lasts, because nothing shows that the handler works.
    """

    def __init__(self, clock: Clock, group: str = "GROUP", canary: Canary | None = None) -> None:
        """`group` is the name that the commands in the problem's next step use."""
        self._problem: Problem | None = None
        self._group = group
        self._canary = canary
        self._clock = clock
        self._judged = totals_of(())
        self._samples = deque([(clock.monotonic(), totals_of(()))])
        self._vain = 0  # failed attempts in the current row
        self._vain_since = 0.0  # when the row began (monotonic)
        self._unsettled = 0  # failed attempts that the last `poll` counted before their messages were settled

    @property
    def problem(self) -> Problem | None:
        """The current problem or None. A canary that was switched off is a problem; a canary with share 0 has none."""
        canary = self._canary
        if canary is not None and canary.failure:
            evidence = f"the canary {canary.handler.name} is switched off: {canary.failure}"
            return make_problem("canary_off", evidence, group=self._group)
        return self._problem if canary is None or canary.options.share else None

    def poll(self, topics: Iterable[TopicSnapshot]) -> None:
        """Compare the current counters with the counters at the last call, and update `problem`."""
        topics, now = tuple(topics), self._clock.monotonic()
        own = [topic for topic in topics if bool(topic.variant) == bool(self._canary)]
        totals, before = totals_of(own), self._judged
        acked, attempts, failed = (totals[name] - before[name] for name in ("acked", "handled", "failed"))
        # at least `failed`: `attempts` counts a failed message only once it is settled, and never if brokers refuse it
        vain = max(attempts - acked - self._unsettled, failed)
        self._unsettled = min(self._unsettled + vain - (attempts - acked), failed)
        errors = sorted((error for topic in own for error in topic.errors), key=lambda error: error.at)
        self._judge(acked, vain, errors, now)
        self._judged = totals
        self._add(totals_of(topics), now)

    def poll_unchanged(self) -> None:
        """Called in place of `poll` if no counter has changed since the last call."""
        self._add(self._samples[-1][1], self._clock.monotonic())

    def _add(self, totals: dict[str, int], now: float) -> None:
        self._samples.append((now, totals))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_WINDOW_SECONDS:
            self._samples.popleft()

    def rates(self, topics: Iterable[TopicSnapshot]) -> dict[str, float]:
        """Return rates per second over the last minute, by HANDLER_RATES."""
        since, before = self._samples[0]
        rates = rates_between(before, totals_of(topics), max(self._clock.monotonic() - since, 1.0))
        return {name: rates[name] for name in HANDLER_RATES}

    def _judge(self, acked: int, vain: int, errors: Sequence[LastError], now: float) -> None:
        """Update the problem by the successful (`acked`) and failed (`vain`) attempts since the last `poll`."""
        vain_share = vain / max(acked + vain, 1)
        if acked and vain_share < (RECOVERED_SHARE if self._problem or self._canary else FAILING_SHARE):
            self._vain, self._problem = 0, None
            return
        if vain and not self._vain:
            self._vain_since = now
        self._vain += vain
        if self._vain >= MIN_ATTEMPTS and now - self._vain_since >= MIN_FAILING_SECONDS and (vain or self._problem):
            self._problem = _problem(self._vain, errors, self._group, self._canary)


def _problem(attempts: int, errors: Sequence[LastError], group: str, canary: Canary | None) -> Problem:
    """Return the problem of a failing handler. If all failures had one message, the message may be at fault."""
    cause, step = "failing_handler", ""
    text = f"the handler fails for (nearly) all messages: {attempts} attempts failed"
    if canary is not None:
        cause, share = "canary_failed", f"{canary.options.share * 100:g}%"
        text = f"the canary {canary.handler.name} gets {share} of the messages, and {attempts} of its attempts failed"
    if not errors:
        return make_problem(cause, text, group=group)
    if canary is None and len({error.msg_id for error in errors[-attempts:]}) == 1:
        cause, one = "poison_message", errors[-1].msg_id
        text = f"all {attempts} failed attempts were at message {one}, and no other message was handled meanwhile"
        step = (
            f"`rmqd try {{group}} --id {one}` runs the handler with it and commits nothing, `rmqd message get {one}` "
            "shows it; correct the handler, or let the message become a dead letter (max_reconsume_times)"
        )
    at = datetime.fromtimestamp(errors[-1].at, UTC)
    return make_problem(
        cause, f"{text}; the last error, at {at:%H:%M:%S} UTC: {errors[-1].error}", group=group, step=step
    )
