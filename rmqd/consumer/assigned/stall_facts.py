"""The cause of a stalled queue, derived from facts in this process, without requests to brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.consumer.health.causes import Problem, explain_failure, make_problem
from rmqd.errors import RmqdError
from rmqd.runtime.plain_text import duration

SLOW_CALL_SECONDS: Final = 10.0  # only a longer call can be the cause of a stall


@dataclass(frozen=True, slots=True, kw_only=True)
class StallFacts:
    """Facts about an assignment that makes no progress although messages wait. Durations are in seconds.

    Several facts can be true at once, and some explain others: if an operator paused a queue, idle handlers are not
    the cause. `explain` checks the facts in a fixed order and returns the first cause that applies.
    """

    stuck: Problem | None = None  # why the queue is not pulled until an operator acts
    paused: bool = False
    circuit: Problem | None = None  # the circuit is open, because handler calls fail
    locked_out: bool = False  # another member has the queue's lock
    in_place: bool = False  # failed messages are retried in place
    kept: Problem | None = None  # why messages cannot be claimed or sent back (`ConsumeMessageService.explain`)
    failure: RmqdError | None = None  # error of the last pull or acquisition
    retrying: int = 0  # postponed messages, which wait for their next attempt
    in_flight: int = 0  # batches in flight, or being settled
    pending: int = 0  # messages that no handler has yet
    uncommitted: int = 0  # messages that an orderly handler has finished but not committed
    oldest: str = ""  # the first unfinished message: "message ID at offset N (retried M times)"
    oldest_id: str = ""
    call_seconds: float | None = None  # longest running call of this queue; None: none, or only abandoned calls
    slots: int = 1
    busy_slots: int = 0
    longest_call_seconds: float = 0.0  # longest running call of the group
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
            return self._found("paused", "an operator paused the queue or its group")
        if self.circuit is not None and (self.in_flight or self.retrying or self.pending):
            return self.circuit
        if self.locked_out and self.broker_down:
            return self._silent_broker()
        if self.locked_out:
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
                f"a handler call has been running for {duration(self.call_seconds)}; first unfinished: {self.oldest}",
            )
        if self.in_place and self.in_flight and self.call_seconds is None and not self.retrying:
            return self._found(
                "slow_handler",
                f"a handler call with {self.oldest} has passed consume_timeout and has not returned",
            )
        if self.in_place and (self.in_flight or self.retrying):
            return self._found("poison_message", f"the handler fails repeatedly at {self.oldest}", self._skip_oldest())
        if self.retrying or (self.in_flight and self.call_seconds is None):
            told = f"no broker accepts retries or dead letters of failed messages; first unfinished: {self.oldest}"
            return self._found("retry_refused", told)
        if self.busy_slots >= self.slots:
            longest = f"the longest call has been running for {duration(self.longest_call_seconds)}"
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
            return self._silent_broker()
        if self.unanswered_seconds > 0:
            told = f"a pull was sent {duration(self.unanswered_seconds)} ago and has no response"
            step = "rmqd restarts the pull loop automatically; if that does not help, check the broker's log"
            return make_problem("stalled_queue", told, step=step)
        return self._found("stalled_queue", _STALLED)

    def _silent_broker(self) -> Problem:
        return self._found("broker_unreachable", f"broker {self.broker} responds neither to heartbeats nor to pulls")

    def _skip_oldest(self) -> str:
        return (
            f"`rmqd try {{group}} --id {self.oldest_id}` runs the handler with the message alone and commits "
            "nothing; "
            "if it fails, correct the handler, or skip the message with `rmqd offsets reset {group} {topic} --skip 1 "
            f"--broker {self.broker} --queue {self.queue_id}`"
        )

    def _found(self, cause: str, evidence: str, step: str = "") -> Problem:
        return make_problem(cause, evidence, group=self.group, topic=self.topic, step=step, slots=self.slots)


_HELD_LOCK: Final = "another member has the lock of this queue, which is assigned to this member"
_STALLED: Final = "messages wait in this queue and nothing holds them back, but the queue makes no progress"
