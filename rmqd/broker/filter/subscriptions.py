"""Which messages a subscription lets through (`ExpressionMessageFilter.java`, `FilterAPI.java`).

The real broker keeps "filter data" of each group and topic beside the subscriptions, and a pull may find one of the two
older than the other (FILTER_DATA_NOT_LATEST). Here a filter is made from the subscription itself: this cannot happen.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rmqd.broker.filter.expressions import Condition
from rmqd.broker.filter.lexer import ExpressionError
from rmqd.broker.filter.parser import compile_condition
from rmqd.broker.filter.values import EvaluationError
from rmqd.broker.store.get_messages import MessageFilter
from rmqd.errors import InvalidNameError
from rmqd.wire.bodies.heartbeat import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIPTION_ALL, SubscriptionData
from rmqd.wire.filter import java_hash
from rmqd.wire.messages.decode import stored_properties

_KEPT: Final = 1000  # filters, of groups that pull


class TagFilter:
    """A filter by the tag's hash. A message of another tag with the same hash passes, and the client drops it."""

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes

    def matches_code(self, tags_code: int) -> bool:
        """Whether the hash is one of a wanted tag."""
        return tags_code in self._codes

    def matches_record(self, record: bytes) -> bool:
        """Return True: brokers compare only hashes of tags."""
        return True


class SqlFilter:
    """A filter by a condition over properties."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition

    def matches_code(self, tags_code: int) -> bool:
        """Return True: the tag's hash says nothing about the condition."""
        return True

    def matches_record(self, record: bytes) -> bool:
        """Whether the condition is true. Unknown, or an error of its evaluation, counts as false."""
        try:
            return self._condition.evaluate(stored_properties(record)) is True
        except EvaluationError:
            return False


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression is one of tags."""
    return expression_type in (None, "", EXPRESSION_TAG)


@lru_cache(_KEPT)
def filter_of(subscription: SubscriptionData) -> MessageFilter | None:
    """The filter of a subscription; None if it lets everything through. Raises ExpressionError."""
    if subscription.class_filter_mode:
        return None
    if is_tag_type(subscription.expression_type):
        return None if subscription.sub_string == SUBSCRIPTION_ALL else TagFilter(subscription.code_set)
    return SqlFilter(compiled(subscription.expression_type, subscription.sub_string))


@lru_cache(_KEPT)
def requested_subscription(topic: str, text: str | None, expression_type: str | None) -> SubscriptionData:
    """The subscription in a pull's own fields. Raises InvalidNameError where Java's parser throws."""
    if expression_type not in (None, EXPRESSION_TAG):
        if not text:
            raise InvalidNameError(f"an expression of type {expression_type} must not be empty")
        return SubscriptionData(topic, text, expression_type=expression_type)
    if not text or text == SUBSCRIPTION_ALL:
        return SubscriptionData(topic)
    if not text.replace("||", ""):
        raise InvalidNameError(f"the tag expression {text!r:.80} names no tag")
    tags = frozenset(filter(None, map(str.strip, text.split("||"))))
    return SubscriptionData(topic, text, tags, frozenset(map(java_hash, tags)))


def compiled(expression_type: str, text: str) -> Condition:
    """Parse a condition. Raises ExpressionError, also for an unknown kind of expression."""
    if expression_type != EXPRESSION_SQL92:
        raise ExpressionError(  # the text of Java's NullPointerException
            'Cannot invoke "org.apache.rocketmq.filter.FilterSpi.compile(String)" because the return value of '
            '"org.apache.rocketmq.filter.FilterFactory.get(String)" is null'
        )
    return compile_condition(text)
