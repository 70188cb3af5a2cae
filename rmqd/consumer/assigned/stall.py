"""Why a queue stands still: decided from what can be seen of it, without asking anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.broker_errors import (
    FlowControlError,
    InvalidParameterError,
    NoPermissionError,
    SubscriptionGroupNotExistError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    SubscriptionParseError,
    TopicNotExistError,
)
from rmqd.diagnosis.causes import Problem
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.wire.topics import LMQ_PREFIX

SLOW_CALL_SECONDS: Final = 10.0  # a handler's call that is younger has not kept its queue from moving
GROUP_FORBIDDEN: Final = "subscription group no permission"  # PullMessageProcessor: the group's consumeEnable is false


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """What is seen of an assignment that makes no progress while messages wait. Durations are in seconds.

    Several of these may be true at once, and some hide others: while an operator pauses a queue, it says nothing that
    no handler is busy. `explain` goes through them in a fixed order and names the first one that applies.
    """

    started: bool = True  # whether it was taken over, and has a loop that pulls or pops
    stuck: Problem | None = None  # why nothing is pulled until an operator acts
    paused: bool = False
    locked_out: bool = False  # somebody else has the queue's lock
    orderly: bool = False
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

    def explain(self) -> Problem:
        """The cause: the first one that applies, ahead of those that it would bring about."""
        if self.stuck is not None:
            return self.stuck
        if self.paused:
            return Problem("paused", "an operator paused it", "`rmqd resume` lets it go on")
        if self.locked_out:
            return _HELD_LOCK
        if self.failure is not None:
            return explain_failure(self.failure)
        if not self.started:
            return _HELD_LOCK
        if self.in_flight or self.retrying or self.pending:
            return self._explain_messages()
        if self.uncommitted:
            return _slow(f"{self.uncommitted} messages are handled, and the handler does not commit them")
        return self._explain_pulls()

    def _explain_messages(self) -> Problem:
        if self.call_seconds is not None and self.call_seconds >= SLOW_CALL_SECONDS:
            return _slow(f"a call of the handler runs for {self.call_seconds:.0f} s; first unfinished is {self.oldest}")
        if self.orderly and self.in_flight and self.call_seconds is None and not self.retrying:
            return _slow(f"a call of the handler that is past its deadline has not come back; it has {self.oldest}")
        if self.orderly and (self.in_flight or self.retrying):
            return Problem(
                "poison_message",
                f"the handler fails again and again at {self.oldest}",
                "mend the handler or the message, or set max_reconsume_times: it then goes to the dead letters",
            )
        if self.retrying or (self.in_flight and self.call_seconds is None):
            return Problem(
                "retry_refused",
                f"no broker takes back what the handler failed at; first unfinished is {self.oldest}",
                "send_back.failed in the log has the broker's reason; it is tried again every few seconds",
            )
        if self.busy_slots >= self.slots:
            longest = f"the longest call runs for {self.longest_call_seconds:.0f} s"
            return _slow(f"all {self.slots} slots of the handler are taken, {longest}")
        if self.in_flight:
            return _slow(f"{self.in_flight} batches are with the handler; first unfinished is {self.oldest}")
        return _STALLED

    def _explain_pulls(self) -> Problem:
        if self.waits_for_rate:
            return Problem("rate_limit", "its next pull waits for pull_rate_limit", "raise pull_rate_limit and reload")
        if self.unanswered_seconds > 0 and self.broker_down:
            return _unreachable(f"broker {self.broker} answers neither heartbeats nor pulls")
        if self.unanswered_seconds > 0:
            return Problem(
                "stalled_queue",
                f"a pull was sent {self.unanswered_seconds:.0f} s ago and has no answer",
                "it is pulled anew by itself; if that does not help, look at the broker's log",
            )
        return _STALLED


def explain_failure(error: RmqdError) -> Problem:
    """What an error that comes again and again means for the queue."""
    text = str(error)
    match error:
        case NoPermissionError() if GROUP_FORBIDDEN in error.remark:
            advice = "`mqadmin updateSubGroup -s true` lets the group consume again"
            return Problem("consumption_disabled", text, advice)
        case NoPermissionError():
            advice = "let it be read: the topic (`mqadmin updateTopicPerm`), the broker (brokerPermission), or the user"
            return Problem("no_permission", text, advice)
        case SubscriptionNotExistError() | SubscriptionNotLatestError() | SubscriptionParseError():
            advice = "`rmqd check --connect` compares the members' subscriptions: they must be equal"
            return Problem("subscription_mismatch", text, advice)
        case SubscriptionGroupNotExistError():
            return Problem("consumption_disabled", text, "create the group with `mqadmin updateSubGroup`")
        case TopicNotExistError() if LMQ_PREFIX in error.remark:
            advice = "the broker has no light message queues: enableLmq=true and enableMultiDispatch=true give it some"
            return Problem("topic_missing", text, advice)
        case TopicNotExistError():
            return Problem("topic_missing", text, "create the topic, or take it out of the group's subscriptions")
        case RouteNotFoundError() | InvalidParameterError():
            return Problem("no_route", text, "is the broker up, and does it register with these name servers?")
        case RemotingError():
            return _unreachable(text)
        case FlowControlError():
            return Problem("pull_failed", text, "the broker limits requests: look at its load and its limits")
        case _:
            return Problem("pull_failed", text, "the broker's log says more; it is tried again every second")


def _slow(evidence: str) -> Problem:
    advice = "give what the handler calls a timeout; consume_timeout ends a call; concurrency helps the other queues"
    return Problem("slow_handler", evidence, advice)


def _unreachable(evidence: str) -> Problem:
    return Problem("broker_unreachable", evidence, "is the broker up, and reachable from here? It goes on by itself")


_HELD_LOCK: Final = Problem(
    "held_lock",
    "another member has the queue's lock, and the group's members do not agree that it should",
    "a member that is gone loses it after a minute; else look at who consumes the queue (mqadmin consumerProgress)",
)
_STALLED: Final = Problem(
    "stalled_queue",
    "messages wait, nothing holds the queue back, and it does not move",
    "its pull loop is started anew by itself; please report it with the log around this line",
)
