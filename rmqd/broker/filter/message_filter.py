"""Filters for messages: by the hashes of tags, or by an SQL92 condition on properties.

RocketMQ's broker stores compiled filters separately from the subscriptions. So a pull may find a filter that is older
than its subscription (FILTER_DATA_NOT_LATEST). This module derives each filter from the subscription, so this error
cannot happen. Java: `ExpressionMessageFilter`, `FilterAPI`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rmqd.broker.filter.sql_condition import Condition, EvaluationError, ExpressionError, compile_condition
from rmqd.errors import InvalidNameError
from rmqd.wire.bodies import heartbeat_data
from rmqd.wire.messages.decode import stored_properties

_MAX_FILTERS: Final = 1000  # limit of the caches of filters and requested subscriptions


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A filter by hashes of tags, or by a condition on properties."""

    codes: frozenset[int] | None = None
    """The hashes of the wanted tags; None for any tag. The client drops other tags with the same hash."""
    condition: Condition | None = None

    def matches_code(self, tags_code: int) -> bool:
        """Return whether a message with this tag hash may pass. Checked before `matches_record`."""
        return self.codes is None or tags_code in self.codes

    def matches_record(self, record: bytes) -> bool:
        """Return whether the condition, if any, is true. An unknown result or an evaluation error counts as false."""
        try:
            return self.condition is None or self.condition(stored_properties(record)) is True
        except EvaluationError:
            return False


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether expressions of this type select messages by tag."""
    return expression_type in (None, "", heartbeat_data.EXPRESSION_TAG)


@lru_cache(_MAX_FILTERS)
def filter_of(subscription: heartbeat_data.SubscriptionData) -> MessageFilter | None:
    """Return the filter of a subscription; None if all messages pass. Raises ExpressionError."""
    if subscription.class_filter_mode:
        return None
    if is_tag_type(subscription.expression_type):
        takes_all = subscription.sub_string == heartbeat_data.SUBSCRIPTION_ALL
        return None if takes_all else MessageFilter(subscription.code_set)
    return MessageFilter(condition=compile_filter_expression(subscription.expression_type, subscription.sub_string))


@lru_cache(_MAX_FILTERS)
def requested_subscription(
    topic: str, text: str | None, expression_type: str | None
) -> heartbeat_data.SubscriptionData:
    """Return the subscription that a pull or pop contains. Raises InvalidNameError if Java cannot parse it."""
    if expression_type not in (None, heartbeat_data.EXPRESSION_TAG):
        if not text:
            raise InvalidNameError(f"an expression of type {expression_type} must not be empty")
        return heartbeat_data.SubscriptionData(topic, text, expression_type=expression_type)
    if not text or text == heartbeat_data.SUBSCRIPTION_ALL:
        return heartbeat_data.SubscriptionData(topic)
    if not text.replace("||", ""):
        raise InvalidNameError(f"the tag expression {text!r:.80} contains no tag")
    tags = frozenset(filter(None, map(str.strip, text.split("||"))))
    return heartbeat_data.SubscriptionData(topic, text, tags, frozenset(map(heartbeat_data.java_hash, tags)))


def compile_filter_expression(expression_type: str, text: str) -> Condition:
    """Parse an SQL92 condition. Raises ExpressionError if the type or the text is invalid."""
    if expression_type != heartbeat_data.EXPRESSION_SQL92:
        raise ExpressionError(f"unknown type of expression {expression_type!r:.80}; expected TAG or SQL92")
    return compile_condition(text)
