"""`run_handler`: every form of a handler, what it gives back, and what it refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pydantic
import pytest

from rmqd import Batch, DeadLetter
from rmqd.errors import ConfigError, RmqdError
from rmqd.testing import RocketMQ, RunResult, StillBusyError
from tests.seen import Seen
from tests.testing.test_docs import blocks
from tests.testing.user_folder import TOP

Run = Callable[..., RunResult]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_it_returns_when_all_is_consumed_and_committed(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
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


def test_a_message_comes_as_it_was_sent(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    sent = rocketmq.send("orders", "grüße", keys="order-1 ada", tags="paid", properties={"region": "eu"})
    (message,) = run_handler(lambda batch: None, topic="orders", group="mailer").acked
    assert (message.body.decode(), message.keys, message.tags) == ("grüße", "order-1 ada", "paid")
    assert message.properties["region"] == "eu"
    assert (message.topic, message.msg_id, message.queue_offset) == ("orders", sent.msg_id, sent.queue_offset)


@pytest.mark.parametrize(("mode", "ends"), [("concurrently", (0, 3)), ("orderly", (0, 3)), ("pop", (None, None))])
def test_a_message_tells_the_ends_of_its_queue_and_when_it_was_handed_out(
    rocketmq: RocketMQ, run_handler: Run, mode: str, ends: tuple[int | None, int | None]
) -> None:
    rocketmq.create_topic("orders")
    for number in range(3):
        rocketmq.send("orders", f"order {number}")
    seen: list[Any] = []

    def handle(batch: Batch) -> None:
        for one in batch:
            assert one.consume_start_timestamp is not None
            seen.append((one.min_offset, one.max_offset, one.consume_start_timestamp - one.store_timestamp))

    result = run_handler(handle, topic="orders", group="mailer", consume_mode=mode)

    assert [(low, high) for low, high, _ in seen] == [ends] * 3, result.errors
    assert all(0 <= waited_ms < 60_000 for _, _, waited_ms in seen)
    assert result.acked[0].consume_start_timestamp is None


def test_the_handler_of_the_docs_skips_what_is_far_behind(rocketmq: RocketMQ, run_handler: Run) -> None:
    [code] = [one for one in blocks((TOP / "docs" / "handlers.md").read_text(), "python") if "MAX_BEHIND" in one]
    shown, names = list[bytes](), dict[str, Any]()
    exec(code, names)
    names |= {"MAX_BEHIND": 2, "show": AsyncMock(side_effect=lambda message: shown.append(message.body))}
    rocketmq.create_topic("orders")
    for number in range(5):
        rocketmq.send("orders", f"order {number}")

    assert len(run_handler(names["handle"], topic="orders", group="mailer").acked) == 5
    assert shown == [b"order 3", b"order 4"]


def test_a_second_run_goes_on_where_the_first_committed(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "one")
    run_handler(seen.take, topic="orders", group="mailer")
    rocketmq.send("orders", "two")
    assert [message.body for message in run_handler(seen.take, topic="orders", group="mailer").acked] == [b"two"]
    assert len(run_handler(seen.take, topic="orders", group="other").acked) == 2
    assert run_handler(seen.take, topic="orders", group="mailer").attempts == ()


class Mailer:
    """A class as a plugin has it."""

    class Options(pydantic.BaseModel):
        """What it takes."""

        sender: str

    said: list[str] = []  # noqa: RUF012 - looked at by the test

    def __init__(self, options: Options) -> None:
        self.options = options

    async def start(self) -> None:
        self.said.append("start")

    def handle(self, batch: Batch) -> None:
        self.said.append(self.options.sender)

    def stop(self) -> None:
        self.said.append("stop")


def test_a_class_gets_its_options_and_is_started_and_stopped(rocketmq: RocketMQ, run_handler: Run) -> None:
    Mailer.said.clear()
    rocketmq.send("orders", "one")
    run_handler(Mailer, topic="orders", group="mailer", options={"sender": "shop@example.org"})
    assert Mailer.said == ["start", "shop@example.org", "stop"]


def test_wrong_options_are_told_as_of_a_configuration(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    with pytest.raises(ConfigError, match=r"groups\.mailer\.handler\.options\.sender: missing"):
        run_handler(Mailer, topic="orders", group="mailer")


class Made:
    """An object that the test made itself, and looks at afterwards."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def start(self) -> None:
        self.events.append("start")

    async def handle(self, batch: Batch) -> None:
        self.events.append(batch[0].body.decode())

    async def stop(self) -> None:
        self.events.append("stop")


def test_an_object_that_was_made_already(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one")
    made = Made()
    run_handler(made, topic="orders", group="mailer")
    assert made.events == ["start", "one", "stop"]


def test_a_function_of_batch_and_options(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one")
    got: list[Any] = []
    run_handler(lambda batch, options: got.append(options), topic="orders", group="mailer", options={"a": 1})
    assert got == [{"a": 1}]


def handle_by_name(batch: Batch) -> None:
    """Found as module:attribute."""
    raise DeadLetter("found by name")


@pytest.mark.parametrize("named", [f"{__name__}:handle_by_name", {"plugin": f"{__name__}:handle_by_name"}])
def test_a_handler_by_its_name(rocketmq: RocketMQ, run_handler: Run, named: object) -> None:
    rocketmq.send("orders", "one")
    run_handler(named, topic="orders", group="mailer")
    assert [one.properties["RMQD_REASON"] for one in rocketmq.dead_letters("mailer")] == ["found by name"]


def test_a_plugin_by_its_name(rocketmq: RocketMQ, run_handler: Run, tmp_path: Any) -> None:
    rocketmq.send("orders", "one", keys="order-1")
    run_handler("jsonl", topic="orders", group="mailer", options={"path": str(tmp_path / "orders.jsonl")})
    assert '"keys":"order-1"' in (tmp_path / "orders.jsonl").read_text().replace(": ", ":")


def test_group_keys_are_those_of_the_configuration(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    for number in range(10):
        rocketmq.send("orders", str(number))
    sizes: list[int] = []
    run_handler(
        lambda batch: sizes.append(len(batch)),
        topic="orders",
        group="mailer",
        consume_message_batch_max_size=10,
        concurrency=1,
        suspend_current_queue_time="2s",
    )
    assert sum(sizes) == 10
    assert max(sizes) > 1


def test_an_expression_filters_the_topic(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "paid", tags="paid")
    rocketmq.send("orders", "open", tags="open")
    result = run_handler(seen.take, topic="orders", group="mailer", expression="paid || refunded")
    assert seen.bodies == [b"paid"]
    assert len(result.attempts) == 1
    assert rocketmq.offsets("mailer", "orders") == {0: 2}


def test_several_topics_by_subscriptions(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.send("orders", "one")
    rocketmq.send("invoices", "two")
    run_handler(seen.take, group="mailer", subscriptions={"orders": "*", "invoices": "*"})
    assert sorted(seen.bodies) == [b"one", b"two"]


def test_a_topic_or_a_group_must_be_named(run_handler: Run, seen: Seen) -> None:
    with pytest.raises(TypeError, match="needs a group"):
        run_handler(seen.take, topic="orders")
    with pytest.raises(TypeError, match="needs a topic"):
        run_handler(seen.take, group="mailer")


def test_a_topic_that_does_not_exist_is_told_at_once(run_handler: Run, seen: Seen) -> None:
    with pytest.raises(RmqdError, match=r"does not exist; create it with rocketmq.create_topic\('ordres'\)"):
        run_handler(seen.take, topic="ordres", group="mailer")


class Broken(Exception):
    """Raised by the handlers below."""


def test_what_a_handler_raises_is_in_the_result(rocketmq: RocketMQ, run_handler: Run) -> None:
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


def test_a_handler_that_does_not_end_is_told_with_its_message(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one", keys="order-1")

    async def hang(batch: Batch) -> None:
        await asyncio.Event().wait()

    with pytest.raises(StillBusyError) as raised:
        run_handler(hang, topic="orders", group="mailer", timeout=0.3)
    text = str(raised.value)
    assert re.search(r"group mailer has something left to do after \d+\.\d s", text)
    assert "(keys order-1)" in text
    assert "has not returned" in text
    # and the message is there for the next run
    assert len(run_handler(lambda batch: None, topic="orders", group="mailer").acked) == 1


def test_a_handler_may_send(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one")

    async def answer(batch: Batch) -> None:
        await asyncio.to_thread(rocketmq.send, "answers", batch[0].body + b" answered")

    run_handler(answer, topic="orders", group="mailer")
    run_handler(lambda batch: rocketmq.send("answers", "by a thread"), topic="orders", group="other")
    assert [message.body for message in rocketmq.messages("answers")] == [b"one answered", b"by a thread"]


async def test_in_a_test_that_is_async_itself(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.send("orders", "one")
    assert len(run_handler(seen, topic="orders", group="mailer").acked) == 1


def test_each_test_has_a_broker_of_its_own(rocketmq: RocketMQ) -> None:
    assert rocketmq.messages("orders") == []
    with RocketMQ() as other:
        other.send("orders", "one")
        assert other.nameserver != rocketmq.nameserver
        assert rocketmq.messages("orders") == []
        assert len(other.messages("orders")) == 1


def test_it_may_run_until_something_is_true(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
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
def test_a_mock_as_a_handler(rocketmq: RocketMQ, run_handler: Run, kind: Callable[..., Any]) -> None:
    rocketmq.send("orders", "one", keys="order-1")
    handler = kind(side_effect=[Broken("once"), None])
    run_handler(handler, topic="orders", group="mailer")
    assert [call.args[0][0].keys for call in handler.call_args_list] == ["order-1", "order-1"]
