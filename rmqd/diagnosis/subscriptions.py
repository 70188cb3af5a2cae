"""Differences between the members of a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rmqd.wire.bodies.heartbeat import EXPRESSION_TAG, SubscriptionData
from rmqd.wire.topics import is_retry_topic


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between members. Equal values are the same difference."""

    cause: str
    about: str  # the topic, the property or the client id
    text: str  # a predicate: "subscribe to … , … to …"


def differences(
    theirs: Mapping[str, SubscriptionData], ours: Mapping[str, SubscriptionData], us: str
) -> Iterator[Difference]:
    """Yield the topics in which a member's subscriptions (`theirs`) differ from our own (`ours`).

    `us` names the side of `ours` in the texts, such as "the configuration". Only the effect on messages is compared,
    not the notation of tags or the version. Retry topics are skipped, because each client subscribes to them
    automatically.
    """
    theirs = {topic: data for topic, data in theirs.items() if not is_retry_topic(topic)}
    ours = {topic: data for topic, data in ours.items() if not is_retry_topic(topic)}
    for topic in sorted(ours.keys() - theirs.keys()):
        yield Difference("subscription_mismatch", topic, f"do not subscribe to {topic}, {us} does")
    for topic in sorted(theirs.keys() - ours.keys()):
        yield Difference("subscription_mismatch", topic, f"subscribe to {topic}, {us} does not")
    for topic in sorted(ours.keys() & theirs.keys()):
        if _meaning(ours[topic]) != _meaning(theirs[topic]):
            text = f"subscribe to {_written(theirs[topic])} of {topic}, {us} to {_written(ours[topic])}"
            yield Difference("subscription_mismatch", topic, text)


def model_difference(theirs: str | None, ours: str, us: str) -> Iterator[Difference]:
    """Yield a difference if members share the messages in one case, and each get all of them in the other."""
    if theirs is not None and theirs != ours:
        yield Difference("mode_mismatch", "message model", f"consume as {theirs}, {us} says {ours}")


def order_difference(theirs: bool | None, ours: bool, us: str) -> Iterator[Difference]:
    """Yield a difference in the order of consumption. `theirs` is None if unknown."""
    if theirs is not None and theirs != ours:
        yield Difference("mode_mismatch", "order", f"consume {_order(theirs)}, {us} {_order(ours)}")


def _order(orderly: bool) -> str:
    return "orderly" if orderly else "concurrently"


def _meaning(data: SubscriptionData) -> object:
    """Return the relevant part of a subscription, without the notation of tags or the version."""
    return data.tags_set if data.expression_type == EXPRESSION_TAG else (data.expression_type, data.sub_string)


def _written(data: SubscriptionData) -> str:
    return f"{data.expression_type} {data.sub_string!r}"
