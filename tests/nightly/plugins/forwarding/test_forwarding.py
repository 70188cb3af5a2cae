"""The handler `rocketmq`: identical copies, order of each key, and the limit of hops.

The core of these tests is in tests/plugins/forwarding/test_forwarding.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.errors import ConfigError, RmqdError
from rmqd.handler_api.decisions import Outcome, decision_for_error
from rmqd.plugins.rocketmq_handler import RocketMq, RocketMqOptions
from rmqd.testing import RocketMQ, make_batch, make_message
from tests.plugins.forwarding.test_forwarding import forward, here, there

__all__ = ["here", "there"]


def test_a_message_that_was_delayed_and_retried_is_not_delayed_again(here: RocketMQ, there: RocketMQ) -> None:
    here.send("orders", b"later", delay_level=3)
    forward(here, there)

    [copy] = there.messages("orders")
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"} & copy.properties.keys()


def test_messages_without_a_key_are_sent_to_all_queues(here: RocketMQ, there: RocketMQ) -> None:
    for number in range(16):
        here.send("orders", str(number))
    forward(here, there)

    assert {copy.queue_id for copy in there.messages("orders")} == {0, 1, 2, 3}


def test_a_chain_may_be_as_long_as_max_hops(here: RocketMQ) -> None:
    """From topic to topic in one cluster. A message beyond the limit is acknowledged and not sent."""
    here.send("orders", b"x")
    for source, target, most in (("orders", "a", 1), ("a", "b", 2), ("b", "c", 2)):
        here.create_topic(target)
        given = {"nameserver": here.nameserver, "topic": target, "max_hops": most}
        result = here.run_handler(RocketMq, topic=source, group=f"to-{target}", options=given)
        assert len(result.acked) == 1

    assert [len(here.messages(topic)) for topic in ("a", "b", "c")] == [1, 1, 0]


@pytest.mark.parametrize(("said", "outcome"), [("9" * 5000, "nowhere"), ("-1", "passed on"), ("many", "passed on")])
def test_invalid_hops_of_a_producer_fail_nothing(here: RocketMQ, there: RocketMQ, said: str, outcome: str) -> None:
    here.send("orders", b"x", properties={"RMQD_HOPS": said})
    result = forward(here, there)

    assert len(result.acked) == 1
    assert len(there.messages("orders")) == (outcome == "passed on")


async def test_a_batch_waits_as_a_whole_for_an_unreachable_cluster() -> None:
    """One message after the other would wait past the batch's deadline. No attempt is counted."""
    batch = make_batch(*(make_message(b"x", queue_offset=number) for number in range(30)))
    handler = RocketMq(RocketMqOptions(nameserver="127.0.0.1:1", retry_for="300ms", in_flight=1))  # type: ignore[arg-type]
    await handler.start()
    with capture_logs() as logs, pytest.raises(RmqdError) as raised:
        await handler.handle(batch)
    await handler.stop()

    assert decision_for_error(raised.value).outcome is Outcome.AGAIN
    assert 0 < [line["event"] for line in logs].count("forward.retried") < len(batch)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "nameserver is missing"),
        ({"nameserver": "nowhere"}, "is not host:port"),
        ({"nameserver": "a:1", "order_by": "colour"}, "the value is not valid; expected"),
        (
            {"nameserver": "a:1", "topic": "a b"},
            "topic: the topic name 'a b' contains a character that RocketMQ refuses",
        ),
        ({"nameserver": "a:1", "max_hops": 0}, "greater than or equal to 1"),
        ({"nameserver": "a:1", "client": {"acess_key": "x"}}, "acess_key: unknown option"),
    ],
)
def test_wrong_options_are_refused(here: RocketMQ, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        here.run_handler(RocketMq, topic="orders", group="mirror", options=options)
