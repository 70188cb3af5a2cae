"""A group's snapshot: its state, queues, counters and readiness, collected from its parts on request."""

from __future__ import annotations

from collections import Counter

from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.slots import HandlerHungError
from rmqd.consumer.health.recent_results import RecentResults
from rmqd.consumer.rebalance.rebalance import Rebalance
from rmqd.consumer.stats.counters import snapshots_of
from rmqd.consumer.stats.snapshot import MOST_MEMBERS, GroupSnapshot
from rmqd.diagnosis.daemon import KEPT
from rmqd.loaded_handler import ProcessCounts
from rmqd.plain_text import describe
from rmqd.wire.topics import is_retry_topic

ENGINE = "local"


class GroupStatus:
    """The group's state, its failure, and its readiness."""

    def __init__(
        self,
        context: GroupContext,
        rebalance: Rebalance,
        results: RecentResults,
        processes: ProcessCounts | None = None,
    ) -> None:
        """`processes` counts the processes in which the handler runs; None if it runs in this process."""
        self._processes = processes
        self._results = results
        self.state = "starting"
        self._context = context
        self._rebalance = rebalance
        self._failure: str | None = None
        self._hung = False

    def failed(self, error: BaseException) -> None:
        """Called when the group ends because of `error`."""
        causes = _leaves(error)
        self.state = "failed"
        self._failure = "; ".join(describe(cause) for cause in causes)
        self._hung = any(isinstance(cause, HandlerHungError) for cause in causes)

    def snapshot(self) -> GroupSnapshot:
        """Return all figures of the group at one moment."""
        context, assigned = self._context, self._rebalance.assigned
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
            queues=tuple(queue for queue in (entry.snapshot() for entry in assigned.values()) if queue is not None),
            assigned={topic: counts[topic] for topic in context.subscriptions if not is_retry_topic(topic)},
            rebalances=self._rebalance.count,
            handover_timeouts=context.ownership.timeouts,
            commit_failures=context.store.failures,
            hook_failures={} if context.hooks is None else dict(context.hooks.failures),
            left_out_by_hooks={} if context.hooks is None else dict(context.hooks.left_out),
            handler_hung=self._hung,
            handler_processes=None if self._processes is None else self._processes.running,
            handler_processes_lost={} if self._processes is None else dict(self._processes.lost),
            problems=tuple(context.problems),
            rates=self._results.rates(topics),
            concurrency=context.service.concurrency,
            circuit=None if context.circuit is None or not context.circuit.is_on else context.circuit.snapshot(),
            trace_records={} if context.trace is None else dict(context.trace.dispatcher.counts),
            members=tuple(sorted(self._rebalance.members)[:MOST_MEMBERS]),
            member_count=len(self._rebalance.members),
        )

    def _not_ready(self) -> str | None:
        options = self._context.options
        refusal = self._context.client.remoting.security.refusals.about((options.group, *options.subscriptions))
        disabled = (
            f"{one.evidence}; {one.next}" for one in self._context.problems if one.cause == "consumption_disabled"
        )
        kept = refusal or next(disabled, None)
        if kept is not None and self.state in ("starting", "running"):
            return f"group {options.group} {KEPT}{kept}"
        if self.state != "running":
            return f"group {self._context.options.group} is {self.state}"
        missing = sorted(topic for topic in self._rebalance.unrouted if not is_retry_topic(topic))
        if missing:
            undivided = [one.evidence for one in self._context.problems if one.cause == "allocate_failed"]
            why = self._context.client.routes.problem or "; ".join(undivided)
            waits = f"group {self._context.options.group} waits for its first assignment of {', '.join(missing)}"
            return f"{waits}: {why}" if why else waits
        return None


def _leaves(error: BaseException) -> list[BaseException]:
    """Return the errors inside exception groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
