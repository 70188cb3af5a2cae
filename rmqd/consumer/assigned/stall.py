"""Why a queue stands still: decided from what can be seen of it, without asking anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.diagnosis.causes import Problem, found
from rmqd.diagnosis.failures import explain_failure
from rmqd.errors import RmqdError

SLOW_CALL_SECONDS: Final = 10.0  # a handler's call that is younger has not kept its queue from moving


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """What is seen of an assignment that makes no progress while messages wait. Durations are in seconds.

    Several of these may be true at once, and some hide others: while an operator pauses a queue, it says nothing that
    no handler is busy. `explain` goes through them in a fixed order and names the first one that applies.
    """

    started: bool = True  # whether it was taken over, and has a loop that pulls or pops
    stuck: Problem | None = None  # why nothing is pulled until an operator acts
    paused: bool = False
    circuit: Problem | None = None  # the handler is not called, as its calls fail
    locked_out: bool = False  # somebody else has the queue's lock
    in_place: bool = False  # what fails is repeated here, and not sent back
    kept: Problem | None = None  # why its messages are not claimed, or not sent back, as far as the service knows
    failure: RmqdError | None = None  # of the last pull, or of the last attempt to take the queue over
    retrying: int = 0  # messages that wait for another try of their send-back
    in_flight: int = 0  # batches that a handler has, or that are settled now
    pending: int = 0  # messages that no handler has yet
    uncommitted: int = 0  # messages that an orderly handler is through with, and did not commit
    oldest: str = ""  # the first message that is not finished: "message ID at offset N (retried M times)"
    call_seconds: float | None = None  # the longest call of the handler for this queue, of those within their deadline
    slots: int = 1
    busy_slots: int = 0
    longest_call_seconds: float = 0.0  # of any queue
    waits_for_rate: bool = False
    unanswered_seconds: float = 0.0  # since a pull was sent that has no answer
    broker_down: bool = False
    broker: str = ""
    group: str = "GROUP"  # for the next step, as the topic
    topic: str = "TOPIC"

    def explain(self) -> Problem:
        """The cause: the first one that applies, ahead of those that it would bring about."""
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
                "slow_handler", f"{self.uncommitted} messages are handled, and the handler does not commit them"
            )
        return self._explain_pulls()

    def _explain_messages(self) -> Problem:
        if self.kept is not None:
            return self.kept
        if self.call_seconds is not None and self.call_seconds >= SLOW_CALL_SECONDS:
            return self._found(
                "slow_handler",
                f"a call of the handler runs for {self.call_seconds:.0f} s; first unfinished is {self.oldest}",
            )
        if self.in_place and self.in_flight and self.call_seconds is None and not self.retrying:
            return self._found(
                "slow_handler",
                f"a call of the handler that is past its deadline has not come back; it has {self.oldest}",
            )
        if self.in_place and (self.in_flight or self.retrying):
            return self._found("poison_message", f"the handler fails again and again at {self.oldest}")
        if self.retrying or (self.in_flight and self.call_seconds is None):
            told = f"no broker takes back what the handler failed at; first unfinished is {self.oldest}"
            return self._found("retry_refused", told)
        if self.busy_slots >= self.slots:
            longest = f"the longest call runs for {self.longest_call_seconds:.0f} s"
            return self._found("slow_handler", f"all {self.slots} slots of the handler are taken, {longest}")
        if self.in_flight:
            return self._found(
                "slow_handler", f"{self.in_flight} batches are with the handler; first unfinished is {self.oldest}"
            )
        return self._found("stalled_queue", _STALLED)

    def _explain_pulls(self) -> Problem:
        if self.waits_for_rate:
            return self._found("rate_limit", "its next pull waits for pull_rate_limit")
        if self.unanswered_seconds > 0 and self.broker_down:
            told = f"broker {self.broker} answers neither heartbeats nor pulls"
            return self._found("broker_unreachable", told)
        if self.unanswered_seconds > 0:
            told = f"a pull was sent {self.unanswered_seconds:.0f} s ago and has no answer"
            step = "it is pulled anew by itself; if that does not help, look at the broker's log"
            return found("stalled_queue", told, step=step)
        return self._found("stalled_queue", _STALLED)

    def _found(self, cause: str, evidence: str) -> Problem:
        return found(cause, evidence, group=self.group, topic=self.topic)


_HELD_LOCK: Final = "another member has the queue's lock, and the group's members do not agree that it should"
_STALLED: Final = "messages wait, nothing holds the queue back, and it does not move"
