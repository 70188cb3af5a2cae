"""Names of topics and groups."""

from __future__ import annotations

import pytest

from rmqd.errors import InvalidNameError
from rmqd.wire.topics import (
    check_group,
    check_topic,
    dlq_topic,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
    pop_retry_topic,
    pop_retry_topic_v2,
    retry_topic,
    topic_of_pop_retry,
    unwrap_namespace,
    wrap_namespace,
)


def test_accepted_names(subtests: pytest.Subtests) -> None:
    for name in ("orders", "a", "A-z_0|9%", "x" * 120, "%RETRY%g"):
        with subtests.test(name=name):
            assert check_topic(name) == check_group(name) == name


REFUSED = [
    ("", "must not be empty"),
    ("  ", "must not be empty"),
    ("a b", "contains a character"),
    ("a.b", "contains a character"),
    ("größe", "contains a character"),
    ("a\n", "contains a character"),
    ("x" * 128, "has 128 characters"),
]


def test_refused_names(subtests: pytest.Subtests) -> None:
    for name, rule in REFUSED:
        with subtests.test(name=name):
            for check in (check_topic, check_group):
                with pytest.raises(InvalidNameError, match=rule):
                    check(name)


def test_groups_are_shorter_than_topics() -> None:
    """The limit is 120 in RocketMQ 5.5, so that the retry topic's name is not too long."""
    assert check_topic("x" * 127)
    with pytest.raises(InvalidNameError, match="at most 120"):
        check_group("x" * 121)


@pytest.mark.parametrize("name", ["DEFAULT_CONSUMER", "DEFAULT_PRODUCER"])
def test_reserved_groups(name: str) -> None:
    with pytest.raises(InvalidNameError, match="reserved"):
        check_group(name)


def test_derived_topics() -> None:
    assert (retry_topic("g"), dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")
    assert is_retry_topic("%RETRY%g")
    assert is_dlq_topic("%DLQ%g")
    assert not is_retry_topic("g")
    assert not is_dlq_topic("g")


def test_pop_retry_topics() -> None:
    assert (pop_retry_topic("g", "T"), pop_retry_topic_v2("g", "T")) == ("%RETRY%g_T", "%RETRY%g+T")
    for retry in ("%RETRY%g_a_T", "%RETRY%g+a_T"):
        assert is_retry_topic(retry)
        assert topic_of_pop_retry("g", retry) == "a_T"
    for other in ("%RETRY%g", "%RETRY%g_", "%RETRY%h_T", "g_T"):
        assert topic_of_pop_retry("g", other) is None


def test_system_names() -> None:
    assert is_system_topic("rmq_sys_SYNC_BROKER_MEMBER")
    assert is_system_topic("TBW102")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_topic("orders")
    assert not is_system_group("orders")


WRAPPED = [
    ("orders", "ns%orders"),
    ("%RETRY%g", "%RETRY%ns%g"),
    ("%DLQ%g", "%DLQ%ns%g"),
    ("TBW102", "TBW102"),
    ("CLIENT_INNER_PRODUCER", "CLIENT_INNER_PRODUCER"),
]


def test_namespace_round_trip(subtests: pytest.Subtests) -> None:
    for plain, wrapped in WRAPPED:
        with subtests.test(plain=plain):
            assert wrap_namespace(plain, "ns") == wrapped
            assert wrap_namespace(wrapped, "ns") == wrapped
            assert unwrap_namespace(wrapped, "ns") == plain
            assert unwrap_namespace(plain, "ns") == plain


def test_a_pop_retry_topic_has_the_namespace_twice() -> None:
    for make in (pop_retry_topic, pop_retry_topic_v2):
        assert unwrap_namespace(make("ns%group", "ns%topic"), "ns") == make("group", "topic")


def test_without_a_namespace_names_do_not_change() -> None:
    assert wrap_namespace("%RETRY%a%b", "") == unwrap_namespace("%RETRY%a%b", "") == "%RETRY%a%b"
