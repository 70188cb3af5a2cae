"""Subscriptions from expressions, with the hashes by which brokers check tags."""

from __future__ import annotations

from struct import unpack

from rmqd.errors import InvalidNameError
from rmqd.wire.bodies.heartbeat import EXPRESSION_SQL92, SUBSCRIPTION_ALL, SubscriptionData


def tag_subscription(topic: str, expression: str | None, version: int) -> SubscriptionData:
    """A subscription by tags, such as "paid || refunded"; "*" or nothing for all.

    `version` is the time in milliseconds. Raises InvalidNameError where the expression names no tag.
    """
    stripped = (expression or "").strip()
    if stripped in ("", SUBSCRIPTION_ALL):
        return SubscriptionData(topic, SUBSCRIPTION_ALL, sub_version=version)
    tags = frozenset(filter(None, (tag.strip() for tag in stripped.split("||"))))
    if not tags:
        raise InvalidNameError(
            f'the tag expression {expression!r} names no tag; accepted are "*" and tags joined by "||"'
        )
    return SubscriptionData(topic, stripped, tags, frozenset(map(java_hash, tags)), version)


def sql_subscription(topic: str, expression: str, version: int) -> SubscriptionData:
    """A subscription by an SQL92 condition over properties, checked by the broker. `version` is milliseconds."""
    if not expression.strip():
        raise InvalidNameError("an SQL92 expression must not be empty")
    return SubscriptionData(topic, expression, sub_version=version, expression_type=EXPRESSION_SQL92)


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, signed 32 bit: what brokers store and compare for tags."""
    data = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for unit in unpack(f">{len(data) // 2}H", data):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - 2**32 if result & 0x80000000 else result
