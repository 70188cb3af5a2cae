"""`run_handler`: forms of handlers, results and errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pydantic
import pytest

from rmqd import Batch, DeadLetter
from rmqd.errors import RmqdError
from rmqd.testing import RocketMQ, RunResult, StillBusyError
from tests.seen import Seen
from tests.testing.user_folder import TOP, blocks

Run = Callable[..., RunResult]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_it_returns_when_all_messages_are_consumed_and_committed(
    rocketmq: RocketMQ, run_handler: Run, seen: Seen
) -> None:
    rocketmq.create_topic("orders", queues=3)
    for number in range(50):
        rocketmq.send("orders", f"order {number}")
    result = run_handler(seen, topic="orders", group="mailer")
    assert len(seen.bodies) == len(set(seen.bodies)) == len(result.acked) == 50
    assert sum(rocketmq.offsets("mailer", "orders").values()) == 50
    assert set(rocketmq.offsets("mailer", "orders")) == {0, 1, 2}
    assert result.retried == []
    assert result.errors == []
    assert rocketmq.dead_letters("mailer") == []


def test_a_handler_receives_a_message_as_it_was_sent(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    sent = rocketmq.send("orders", "grüße", keys="order-1 ada", tags="paid", properties={"region": "eu"})
    (message,) = run_handler(lambda batch: None, topic="orders", group="mailer").acked
    assert (message.body.decode(), message.keys, message.tags) == ("grüße", "order-1 ada", "paid")
    assert message.properties["region"] == "eu"
    assert (message.topic, message.msg_id, message.queue_offset) == ("orders", sent.msg_id, sent.queue_offset)


def test_the_handler_of_the_docs_skips_messages_far_behind(rocketmq: RocketMQ, run_handler: Run) -> None:
    [code] = [one for one in blocks((TOP / "docs" / "handlers.md").read_text(), "python") if "MAX_BEHIND" in one]
    shown, names = list[bytes](), dict[str, Any]()
    exec(code, names)
    names |= {"MAX_BEHIND": 2, "show": AsyncMock(side_effect=lambda message: shown.append(message.body))}
    rocketmq.create_topic("orders")
    for number in range(5):
        rocketmq.send("orders", f"order {number}")

    assert len(run_handler(names["handle"], topic="orders", group="mailer").acked) == 5
    assert shown == [b"order 3", b"order 4"]


class Mailer:
    """A handler class with options, as in a plugin."""

    class Options(pydantic.BaseModel):
        """The options of the handler."""

        sender: str

    said: list[str] = []  # noqa: RUF012 - read by the test

    def __init__(self, options: Options) -> None:
        self.options = options

    async def start(self) -> None:
        self.said.append("start")

    def handle(self, batch: Batch) -> None:
        self.said.append(self.options.sender)

    def stop(self) -> None:
        self.said.append("stop")


def test_a_handler_class_gets_its_options_and_is_started_and_stopped(rocketmq: RocketMQ, run_handler: Run) -> None:
    Mailer.said.clear()
    rocketmq.send("orders", "one")
    run_handler(Mailer, topic="orders", group="mailer", options={"sender": "shop@example.org"})
    assert Mailer.said == ["start", "shop@example.org", "stop"]


def handle_by_name(batch: Batch) -> None:
    """A handler that is named as module:attribute."""
    raise DeadLetter("found by name")


BY_NAME = f"{__name__}:handle_by_name"


@pytest.mark.parametrize(
    "named", [BY_NAME, {"plugin": BY_NAME}, {"plugin": "log", "canary": {"plugin": BY_NAME, "share": "100%"}}]
)
def test_a_handler_may_be_given_by_its_name(rocketmq: RocketMQ, run_handler: Run, named: object) -> None:
    rocketmq.send("orders", "one")
    run_handler(named, topic="orders", group="mailer")
    assert [one.properties["RMQD_REASON"] for one in rocketmq.dead_letters("mailer")] == ["found by name"]


def test_an_expression_filters_the_topic(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "paid", tags="paid")
    rocketmq.send("orders", "open", tags="open")
    result = run_handler(seen.take, topic="orders", group="mailer", expression="paid || refunded")
    assert seen.bodies == [b"paid"]
    assert len(result.attempts) == 1
    assert rocketmq.offsets("mailer", "orders") == {0: 2}


def test_a_missing_topic_is_an_error_that_names_the_solution(run_handler: Run, seen: Seen) -> None:
    with pytest.raises(RmqdError, match=r"does not exist; create it with rocketmq.create_topic\('ordres'\)"):
        run_handler(seen.take, topic="ordres", group="mailer")


class Broken(Exception):
    """Raised by the handlers below."""


def test_an_exception_of_a_handler_is_in_the_result(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one", keys="order-1")

    async def fail(batch: Batch) -> None:
        raise Broken("every time")

    result = run_handler(fail, topic="orders", group="mailer", max_reconsume_times=0)
    (error,) = result.errors
    assert isinstance(error, Broken)
    assert [one.outcome for one in result.attempts_of("order-1")] == ["dead_lettered"]
    (dead,) = rocketmq.dead_letters("mailer")
    assert (dead.body, dead.keys) == (b"one", "order-1")
    assert dead.properties["RMQD_REASON"] == "max_reconsume_times reached"
    assert "every time" in dead.properties["RMQD_EXCEPTION"]
    assert [one.msg_id for one in result.dead_letters] == [dead.msg_id]
    assert result.acked == []


def test_a_handler_that_does_not_return_is_reported_with_its_message(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one", keys="order-1")

    async def hang(batch: Batch) -> None:
        await asyncio.Event().wait()

    text, timeout = "", 0.15
    while "(keys order-1)" not in text and timeout < 60:  # a busy machine takes longer to call the handler
        timeout *= 2
        with pytest.raises(StillBusyError) as raised:
            run_handler(hang, topic="orders", group="mailer", timeout=timeout)
        text = str(raised.value)
    assert re.search(r"group mailer has something left to do after \d+(\.\d)? m?s", text)
    assert "(keys order-1)" in text
    assert "has not returned" in text
    # the next run still receives the message
    assert len(run_handler(lambda batch: None, topic="orders", group="mailer").acked) == 1


def test_it_may_run_until_a_condition_is_true(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.send("orders", "poison")

    def fail(batch: Batch) -> None:
        seen.take(batch)
        raise Broken

    result = run_handler(fail, topic="orders", group="mailer", until=lambda: len(seen.bodies) == 3)
    assert [one.outcome for one in result.attempts] == ["retried"] * 3
    assert rocketmq.dead_letters("mailer") == []
    with pytest.raises(RmqdError, match="has nothing left to do, but `until` is still false"):
        run_handler(seen.take, topic="orders", group="mailer", until=lambda: len(seen.bodies) == 9)


@pytest.mark.parametrize("kind", [Mock, AsyncMock])
def test_a_handler_may_be_a_mock(rocketmq: RocketMQ, run_handler: Run, kind: Callable[..., Any]) -> None:
    rocketmq.send("orders", "one", keys="order-1")
    handler = kind(side_effect=[Broken("once"), None])
    run_handler(handler, topic="orders", group="mailer")
    assert [call.args[0][0].keys for call in handler.call_args_list] == ["order-1", "order-1"]
