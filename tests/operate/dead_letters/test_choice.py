"""Filters of dead letters, and the reason and origin of a dead letter."""

from __future__ import annotations

from typing import Any

from rmqd.operate.dead_letters.dead_letter import DeadLetterFilter, DlqMessage
from rmqd.testing import make_message

AT = 1_700_000_000_000
ID = "7F000001000000000000000000000001"


def letter(**more: str) -> DlqMessage:
    """A dead letter from rmqd."""
    reasons = {"RMQD_REASON": "max_reconsume_times reached", "RMQD_EXCEPTION": "Traceback\nshop.TooLate: by 3 s"}
    properties = {"RETRY_TOPIC": "orders", "shop": "a", **reasons, **more}
    message = make_message(
        topic="%DLQ%g", keys="k1 k2", tags="paid", msg_id=ID, store_timestamp=AT, properties=properties
    )
    return DlqMessage(message, "g")


CHOICES: list[tuple[bool, dict[str, Any]]] = [
    (True, {}),
    (True, {"since_ms": AT, "until_ms": AT + 1}),
    (False, {"since_ms": AT + 1}),
    (False, {"until_ms": AT}),
    (True, {"keys": frozenset({"k2", "k9"})}),
    (False, {"keys": frozenset({"k"})}),
    (True, {"tags": frozenset({"paid", "refunded"})}),
    (False, {"tags": frozenset({"refunded"})}),
    (True, {"properties": (("shop", "a"), ("TAGS", "paid"))}),
    (False, {"properties": (("shop", "a"), ("TAGS", "refunded"))}),
    (True, {"ids": frozenset({ID})}),
    (False, {"ids": frozenset({"another"})}),
    (True, {"reason": "toolate: BY"}),
    (True, {"reason": "Max_Reconsume"}),
    (False, {"reason": "Traceback"}),
    (False, {"keys": frozenset({"k1"}), "tags": frozenset({"refunded"})}),
]


def test_a_filter_takes_letters_that_meet_all_its_conditions() -> None:
    for taken, choice in CHOICES:
        assert DeadLetterFilter(**choice).matches(letter()) is taken


def test_the_id_of_a_message_without_a_producers_id_selects_its_letter() -> None:
    """The log of a failed message names the id of the message's first copy."""
    one = make_message(topic="%DLQ%g", msg_id="", properties={"ORIGIN_MESSAGE_ID": ID})
    assert DeadLetterFilter(ids=frozenset({ID})).matches(DlqMessage(one, "g"))


def test_a_letter_is_counted_by_its_reason_and_the_exception_s_name() -> None:
    assert letter().kind == "max_reconsume_times reached (TooLate)"
    assert letter(RMQD_REASON="no shop", RMQD_EXCEPTION="rmqd.DeadLetter: no shop").kind == "no shop"
    assert DlqMessage(make_message(topic="%DLQ%g"), "g").kind is None


def test_the_origin_topic_of_a_dead_letter() -> None:
    for told, origin in [
        ("orders", "orders"),
        ("%RETRY%g_orders", "orders"),  # sent back by a POP consumer
        ("%RETRY%g+orders", "orders"),
        ("%RETRY%g", None),
        ("", None),
    ]:
        one = letter(RETRY_TOPIC=told)
        assert one.origin_topic == origin
        assert bool(one.refusal) is (origin is None)
