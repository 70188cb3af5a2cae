"""The facts of a stalled queue, and the cause that they show."""

from __future__ import annotations

from typing import Any

from rmqd.codes import ResponseCode
from rmqd.consumer.assigned.stall_facts import StallFacts
from rmqd.consumer.health.causes import STALL_CAUSES, Problem, explain_failure
from rmqd.errors import (
    NameServerError,
    ProtocolError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingTimeoutError,
    RouteNotFoundError,
)
from rmqd.errors.broker_errors import BrokerError


def refusal(code: ResponseCode, remark: str = "") -> BrokerError:
    return BrokerError.of(code, remark, "broker-a")


OPEN = Problem("circuit_open", "5 calls in a row failed", "see to it")
FAILED = Problem("failing_handler", "it is sent back when a later call succeeds", "see its log")
HELD = Problem("corrupt_message", "a message is corrupt", "skip it")


SIGHTS: list[tuple[dict[str, Any], str, str]] = [
    ({"stuck": HELD, "paused": True, "in_flight": 1}, "corrupt_message", "a message is corrupt"),
    ({"paused": True, "failure": refusal(ResponseCode.NO_PERMISSION)}, "paused", "operator"),
    ({"circuit": OPEN, "pending": 3, "in_flight": 1}, "circuit_open", "5 calls in a row"),
    ({"circuit": OPEN, "paused": True, "pending": 3}, "paused", "operator"),
    ({"circuit": OPEN, "locked_out": True}, "held_lock", "another member"),
    ({"locked_out": True, "pending": 3}, "held_lock", "another member"),
    ({"locked_out": True, "broker_down": True, "broker": "broker-a"}, "broker_unreachable", "broker-a"),
    ({"failure": RemotingConnectError("b:1", "refused")}, "broker_unreachable", "b:1: refused"),
    ({"in_flight": 1, "pending": 99, "call_seconds": 25.0}, "slow_handler", "25 s; first unfinished: message M"),
    ({"pending": 5, "slots": 2, "busy_slots": 2, "longest_call_seconds": 40.0}, "slow_handler", "all 2 slots"),
    ({"in_flight": 2, "call_seconds": 0.5, "slots": 9, "busy_slots": 2}, "slow_handler", "2 batches"),
    ({"retrying": 1, "slots": 2, "busy_slots": 2}, "retry_refused", "message M"),
    ({"in_flight": 1, "slots": 2}, "retry_refused", "message M"),
    ({"in_flight": 1, "slots": 2, "kept": FAILED}, "failing_handler", "sent back when"),
    ({"in_flight": 1, "call_seconds": 0.1, "in_place": True}, "poison_message", "message M"),
    ({"in_flight": 1, "call_seconds": 30.0, "in_place": True}, "slow_handler", "message M"),
    ({"in_flight": 1, "in_place": True}, "slow_handler", "has not returned"),
    ({"uncommitted": 1000, "in_place": True}, "slow_handler", "1000 messages are handled"),
    ({"retrying": 1, "in_place": True}, "poison_message", "message M"),
    ({"pending": 1, "slots": 2}, "stalled_queue", "nothing holds"),
    ({"waits_for_rate": True}, "rate_limit", "pull_rate_limit"),
    ({"unanswered_seconds": 30.0, "broker_down": True, "broker": "broker-a"}, "broker_unreachable", "broker-a"),
    ({"unanswered_seconds": 30.0}, "stalled_queue", "30 s ago"),
    ({}, "stalled_queue", "nothing holds"),
]


def test_each_set_of_facts_has_its_cause() -> None:
    for seen, cause, evidence in SIGHTS:
        problem = StallFacts(**{"oldest": "message M"} | seen).explain()

        assert problem.cause == cause
        assert evidence in problem.evidence
        assert problem.next


def test_each_failure_has_its_cause_and_says_what_happened() -> None:
    for error, cause in [
        (refusal(ResponseCode.NO_PERMISSION, "subscription group no permission, g"), "consumption_disabled"),
        (refusal(ResponseCode.NO_PERMISSION, "the topic[t] pulling message is forbidden"), "no_permission"),
        (refusal(ResponseCode.NO_PERMISSION, "the broker[10.0.0.1] pulling message is forbidden"), "no_permission"),
        (refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), "group_unknown"),
        (refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST), "subscription_mismatch"),
        (refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST), "subscription_mismatch"),
        (refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED), "subscription_mismatch"),
        (refusal(ResponseCode.TOPIC_NOT_EXIST), "topic_missing"),
        (refusal(ResponseCode.INVALID_PARAMETER), "no_route"),
        (RouteNotFoundError("t", "no address is known for broker b"), "no_route"),
        (RemotingConnectError("b:1", "refused"), "broker_unreachable"),
        (RemotingTimeoutError("b:1", "no answer"), "broker_unreachable"),
        (RemotingClosedError("b:1", "closed"), "broker_unreachable"),
        (NameServerError("n:1", "none answers"), "broker_unreachable"),
        (refusal(ResponseCode.FLOW_CONTROL), "pull_failed"),
        (refusal(ResponseCode.SYSTEM_ERROR), "pull_failed"),
        (ProtocolError("not a frame"), "pull_failed"),
    ]:
        problem = explain_failure(error)

        assert problem.cause == cause
        assert problem.evidence == str(error)
        assert problem.next
        assert cause in STALL_CAUSES


def test_a_broker_without_light_queues_is_distinguished_from_a_missing_topic() -> None:
    problem = explain_failure(
        refusal(ResponseCode.TOPIC_NOT_EXIST, "topic[%LMQ%room-7] not exist, apply first please!")
    )

    assert "enableLmq=true" in problem.next


def test_the_step_for_a_poisoned_queue_names_the_message_and_the_queue() -> None:
    """The command that skips the message works as printed."""
    seen = StallFacts(
        retrying=1,
        in_place=True,
        oldest="message M",
        oldest_id="M",
        group="mailer",
        topic="orders",
        broker="b",
        queue_id=3,
    )
    step = seen.explain().next
    assert "`rmqd try mailer --id M`" in step
    assert "`rmqd offsets reset mailer orders --skip 1 --broker b --queue 3`" in step


def test_the_recommended_concurrency_is_twice_the_present_one() -> None:
    seen = StallFacts(pending=5, slots=64, busy_slots=64, group="mailer")
    assert "`rmqd concurrency mailer 128`" in seen.explain().next


def test_the_step_for_a_poisoned_queue_may_name_any_message_id() -> None:
    """Producers choose the ids of messages."""
    seen = StallFacts(retrying=1, in_place=True, oldest_id="{0} {x} {", group="mailer")
    assert "`rmqd try mailer --id {0} {x} {`" in seen.explain().next
