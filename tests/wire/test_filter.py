"""Subscriptions by tag and by SQL, and Java's hash of tags."""

from __future__ import annotations

import pytest

from rmqd.errors import InvalidNameError
from rmqd.wire.bodies.heartbeat_data import intended_filter, java_hash, sql_subscription, tag_subscription

HASHES = [("", 0), ("TagA", 2598919), ("TagB", 2598920), ("hello world", 1794106052), ("中文", 646394)]


def test_hash_equals_javas(subtests: pytest.Subtests) -> None:
    for text, expected in HASHES:
        with subtests.test(text=text):
            assert java_hash(text) == expected


def test_hash_counts_utf16_units_and_is_signed() -> None:
    """In Java, a character outside the basic plane is two units. A lone surrogate has a hash too."""
    assert java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00
    assert java_hash("\ud83d") == 0xD83D
    assert java_hash("polygenelubricants") == -(2**31)


def test_expressions_for_all_messages(subtests: pytest.Subtests) -> None:
    for expression in ("*", "", None, "  ", " * "):
        with subtests.test(expression=expression):
            subscription = tag_subscription("T", expression, 5)
            assert (subscription.sub_string, subscription.sub_version) == ("*", 5)
            assert (len(subscription.tags_set), len(subscription.code_set)) == (0, 0)


def test_tags(subtests: pytest.Subtests) -> None:
    for expression in ("TagA||TagB", " TagA || TagB ", "TagA || || TagB||"):
        with subtests.test(expression=expression):
            subscription = tag_subscription("T", expression, 5)
            assert subscription.tags_set == {"TagA", "TagB"}
            assert subscription.code_set == {2598919, 2598920}


def test_tags_with_equal_hashes() -> None:
    """The broker compares hashes, so it delivers "BB" if "Aa" is wanted. Only the names of the tags differ."""
    wanted, other = tag_subscription("T", "Aa", 0), tag_subscription("T", "BB", 0)
    assert wanted.code_set == other.code_set
    assert wanted.tags_set != other.tags_set


def test_expression_without_a_tag_is_refused() -> None:
    """Brokers accept such an expression and never deliver a message."""
    with pytest.raises(InvalidNameError, match="contains no tag"):
        tag_subscription("T", " || ", 0)


def test_sql() -> None:
    subscription = sql_subscription("T", "a > 1", 5)
    assert (subscription.expression_type, subscription.sub_string) == ("SQL92", "a > 1")
    assert subscription.tags_set == frozenset()
    with pytest.raises(InvalidNameError):
        sql_subscription("T", " ", 0)


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("paid or refunded", '"paid || refunded"'),
        ("paid, refunded", '"paid || refunded"'),
        ("paid | refunded;sent\uff5c\uff5cgone\u200b", '"paid || refunded || sent || gone"'),
        ("paid refunded", '"paid || refunded"'),
        ("\u201cpaid\u201d || \u2018refunded\u2019", '"paid || refunded"'),
        ("'paid'", '"paid"'),
        ("paid || *", '"*"'),
        ("^.*$", '"*"'),
        ("(paid \u00a6\u00a6 [refunded])", '"paid || refunded"'),
        ("paid* || refunded", "{sql: \"TAGS STARTSWITH 'paid' OR TAGS = 'refunded'\"}"),
        ("TAGS = 'paid'", "{sql: \"TAGS = 'paid'\"}"),
        ("!paid", "{sql: \"TAGS <> 'paid'\"}"),
        ("!= paid", "{sql: \"TAGS <> 'paid'\"}"),
        ("paid / refunded", '"paid || refunded"'),
        ("tags = paid", "{sql: \"TAGS = 'paid'\"}"),
        *((right, None) for right in ("*", "", "paid", " paid||refunded ", "order:paid-1", "or", "*.paid", "中文")),
        *((right, None) for right in ("50%", "sale-50% || paid", "refund(part)")),
    ],
)
def test_the_intended_filter_is_found_for_one_that_matches_no_message(expression: str, meant: str | None) -> None:
    assert intended_filter(expression, "TAG") == meant
    assert intended_filter("region = \u201ceu\u201d", "SQL92") == "{sql: \"region = 'eu'\"}"
    assert intended_filter("TAGS = 'a||b' AND c = d", "SQL92") == "{sql: \"TAGS IN ('a', 'b') AND c = d\"}"
    assert intended_filter("a LIKE 'x%' && b != '||'", "SQL92") == "{sql: \"a STARTSWITH 'x' AND b <> '||'\"}"
    assert intended_filter("paid || gone", "SQL92") == "{sql: \"TAGS IN ('paid', 'gone')\"}"
    assert intended_filter("a LIKE '%x%' AND b LIKE '%y'", "SQL92") == "{sql: \"a CONTAINS 'x' AND b ENDSWITH 'y'\"}"
    assert intended_filter("TAGS='a' and TAGS='b'", "SQL92") == "{sql: \"TAGS IN ('a', 'b')\"}"
    assert intended_filter("a = 'tag' AND c > 1", "SQL92") is intended_filter("tag > 5 AND TAGS = 'a'", "SQL92") is None
    assert intended_filter("TRUE", "SQL92") is None
    assert intended_filter("x LIKE 'it''s%'", "SQL92") is intended_filter("x LIKE '%'", "SQL92") is None
    for fine in ("url = 'http://x?TAGS=abc'", "city = 'C\u00f4te d\u2019Ivoire'", "$tag = 2", "b IN ('TAGS = y', 'q')"):
        assert intended_filter(fine, "SQL92") is None, fine
    for fine in ("in || out", "like || dislike", "sign-in || sign-out"):
        assert intended_filter(fine, "TAG") is None, fine
