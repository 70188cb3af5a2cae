"""Filters of many kinds over the same messages, for a Java consumer and rmqd."""

from __future__ import annotations

from pathlib import Path

from rmqd.consumer.consumer_options import Subscription
from tests.conformance import behaviour
from tests.conformance.attempts import Attempts
from tests.conformance.scripted import both
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.waiting import eventually

MESSAGES = {
    "red": ("A", {"colour": "red", "amount": "5"}),
    "blue": ("BB", {"colour": "blue", "amount": "10"}),
    "collides": ("Aa", {"colour": "blue", "amount": "15.5"}),  # has BB's hash
    "green": ("C", {"colour": "green", "amount": "-1", "urgent": "true"}),
    "plain": ("", {}),
    "text": ("A", {"colour": "", "amount": "ten"}),
    "umlaut": ("Ü", {"colour": "röt"}),
}
FILTERS = {
    Subscription("*", "TAG"): "blue collides green plain red text umlaut",
    Subscription("A", "TAG"): "red text",
    Subscription("A || C", "TAG"): "green red text",
    Subscription("  BB||C  ", "TAG"): "blue green",
    Subscription("Aa", "TAG"): "collides",
    Subscription("Ü || none", "TAG"): "umlaut",
    Subscription("amount > 5 AND amount <= 15.5", "SQL92"): "blue",
    Subscription("amount BETWEEN 5 AND 10", "SQL92"): "blue red",
    Subscription("colour IN ('red', 'green')", "SQL92"): "green red",
    Subscription("colour NOT IN ('red', 'green')", "SQL92"): "blue collides umlaut",
    Subscription("colour IS NULL", "SQL92"): "plain text",
    Subscription("colour <> 'red' OR amount < 0", "SQL92"): "blue collides green umlaut",
    Subscription("NOT (colour = 'blue')", "SQL92"): "green red umlaut",
    Subscription("urgent = TRUE", "SQL92"): "green",
    Subscription("TAGS IS NOT NULL AND TAGS = 'A'", "SQL92"): "red text",
    Subscription("colour = 'röt'", "SQL92"): "umlaut",
}
"""Each with the keys of what it chooses. A broker sees no property that is empty."""


@behaviour(
    "filters",
    "Tag expressions and SQL92 conditions select the same messages",
    java="the broker evaluates SQL92, and tags by hash; the client then compares the tag's name",
    rmqd="the same",
    checked="compared with a Java consumer: six tag expressions and ten conditions over the same messages",
)
async def test_filters_choose_what_they_choose_for_java(rocketmq: RealCluster, group: str, tmp_path: Path) -> None:
    """Each filter has its own topic, with the same messages in it."""
    subscriptions = {rocketmq.create_topic(fresh_name(f"filter{n}", "topic"), 1): one for n, one in enumerate(FILTERS)}
    for topic in subscriptions:
        with Producer(rocketmq.broker.address, topic, 1) as producer:
            for key, (tags, properties) in MESSAGES.items():
                producer.send(key=key, tags=tags, properties=properties)

    async with both(rocketmq, group, tmp_path, subscriptions, consume_from_where="first_offset") as sides:
        for topic in subscriptions:
            await eventually(
                lambda: offsets.lag(rocketmq, sides.rmqd.group, topic) == 0,  # noqa: B023 awaited in the loop
                f"rmqd has consumed {subscriptions[topic]}",
            )
        # Java commits unwanted messages at the end of a queue only when its held pull returns: do not wait for its lag
        await eventually(lambda: len(sides.java.attempts) >= len(sides.rmqd.attempts), "Java has as many attempts")
        seen_by_java, seen_by_rmqd = await sides.stop()

    def chosen(attempts: Attempts) -> dict[str, list[str]]:
        return {
            subscriptions[topic].expression: sorted(one.keys or "" for one in attempts if one.topic == topic)
            for topic in subscriptions
        }

    wanted = {one.expression: keys.split() for one, keys in FILTERS.items()}
    assert chosen(seen_by_rmqd) == chosen(seen_by_java) == wanted
