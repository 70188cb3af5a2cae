"""`run_handler`: every form of a handler, its results and its errors.

The core of these tests is in tests/testing/test_run_handler.py.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rmqd import Batch
from rmqd.errors import ConfigError, RmqdError
from rmqd.testing import RocketMQ, StillBusyError
from tests.seen import Seen
from tests.testing.test_run_handler import Broken, Mailer, Run, seen

__all__ = ["seen"]


def test_a_run_on_an_empty_topic_ends_with_an_offset_for_each_queue(
    rocketmq: RocketMQ, run_handler: Run, seen: Seen
) -> None:
    rocketmq.create_topic("orders", queues=8)
    assert run_handler(seen.take, topic="orders", group="mailer").attempts == ()
    assert rocketmq.offsets("mailer", "orders") == dict.fromkeys(range(8), 0)


def test_the_group_s_deduplication_store_is_not_used(
    rocketmq: RocketMQ, run_handler: Run, seen: Seen, tmp_path: Path
) -> None:
    """Otherwise messages in production with the same keys would be skipped."""
    store = tmp_path / "claims.sqlite3"
    rocketmq.create_topic("orders")
    for body in ("one", "two"):
        rocketmq.send("orders", body, keys="order-1")
    run_handler(seen.take, topic="orders", group="mailer", deduplicate={"by": "keys", "url": str(store)})
    assert sorted(seen.bodies) == [b"one", b"two"]  # from two queues
    assert not store.exists()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"max_reconsume_time": 3}, "run_handler: groups.mailer.max_reconsume_time: unknown key; did you mean"),
        ({"consume_timeout": 5}, "groups.mailer.consume_timeout: "),
        ({"consume_mode": "pop", "message_model": "broadcasting"}, "groups.mailer.consume_mode: pop: in broadcasting"),
        ({"concurrency": 0}, "groups.mailer.handler.concurrency: "),
        ({"expression": "a &&"}, "groups.mailer.subscriptions"),
    ],
)
def test_a_wrong_key_raises_the_error_of_the_configuration(
    rocketmq: RocketMQ, run_handler: Run, keys: dict[str, Any], text: str
) -> None:
    rocketmq.create_topic("orders")
    with pytest.raises(RmqdError) as raised:
        run_handler(lambda batch: None, topic="orders", group="mailer", **keys)
    assert text in str(raised.value) or "expression" in keys


class BrokenConstructor:
    """Cannot be made."""

    def __init__(self) -> None:
        raise Broken("in the constructor") from KeyError("the cause")

    def handle(self, batch: Batch) -> None:
        """Never called."""


class BrokenStart:
    """Cannot be started."""

    async def start(self) -> None:
        raise Broken("in start") from KeyError("the cause")

    def handle(self, batch: Batch) -> None:
        """Never called."""


class BrokenStop:
    """Cannot be stopped."""

    def handle(self, batch: Batch) -> None:
        """Fine."""

    def stop(self) -> None:
        raise Broken("in stop") from KeyError("the cause")


@pytest.mark.parametrize(
    ("handler", "where"), [(BrokenConstructor, "the constructor"), (BrokenStart, "start"), (BrokenStop, "stop")]
)
def test_exceptions_of_constructor_start_and_stop_are_raised_in_the_test(
    rocketmq: RocketMQ, run_handler: Run, handler: type, where: str
) -> None:
    rocketmq.create_topic("orders")
    with pytest.raises(Broken, match=f"in {where}") as raised:
        run_handler(handler, topic="orders", group="mailer")
    assert isinstance(raised.value.__cause__, KeyError)
    # the kit is still usable
    assert run_handler(lambda batch: None, topic="orders", group="mailer").attempts == ()


def test_a_handler_thread_that_does_not_end_is_abandoned(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one", keys="order-1")
    let_go = threading.Event()
    text, timeout = "", 0.15
    try:
        while "keys order-1" not in text and timeout < 60:  # a busy machine takes longer to call the handler
            timeout *= 2
            with pytest.raises(StillBusyError) as raised:
                run_handler(lambda batch: let_go.wait(), topic="orders", group="mailer", timeout=timeout)
            text = str(raised.value)
        assert "keys order-1" in text
    finally:
        let_go.set()


def test_waiting_for_the_kit_in_its_own_loop_is_refused(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one")

    async def ask(batch: Batch) -> None:
        rocketmq.send("answers", "blocks")

    (error,) = run_handler(ask, topic="orders", group="mailer", max_reconsume_times=0).errors
    assert "await asyncio.to_thread" in str(error)


def test_an_sql_filter_selects_messages(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.create_topic("orders")
    for amount in ("50", "150"):
        rocketmq.send("orders", amount, properties={"amount": amount})
    run_handler(seen.take, group="mailer", subscriptions={"orders": {"sql": "amount > 100"}})
    assert seen.bodies == [b"150"]


def test_a_failed_message_of_a_broadcasting_group_is_dropped(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one", keys="order-1")

    def fail(batch: Batch) -> None:
        raise Broken("once")

    result = run_handler(fail, topic="orders", group="mailer", message_model="broadcasting")
    assert [one.outcome for one in result.attempts_of("order-1")] == ["dropped"]
    assert result.acked == []


def test_a_broadcasting_group_keeps_its_offsets(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.send("orders", "one")
    run_handler(seen.take, topic="orders", group="mailer", message_model="broadcasting")
    assert run_handler(seen.take, topic="orders", group="mailer", message_model="broadcasting").attempts == ()
    assert seen.bodies == [b"one"]


@pytest.mark.parametrize(("mode", "ends"), [("concurrently", (0, 3)), ("orderly", (0, 3)), ("pop", (None, None))])
def test_a_message_has_the_offsets_of_its_queue_and_a_start_timestamp(
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


def test_a_second_run_continues_at_the_committed_offset(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "one")
    run_handler(seen.take, topic="orders", group="mailer")
    rocketmq.send("orders", "two")
    assert [message.body for message in run_handler(seen.take, topic="orders", group="mailer").acked] == [b"two"]
    assert len(run_handler(seen.take, topic="orders", group="other").acked) == 2
    assert run_handler(seen.take, topic="orders", group="mailer").attempts == ()


def test_wrong_options_raise_the_error_of_the_configuration(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    with pytest.raises(ConfigError, match=r"groups\.mailer\.handler\.options\.sender: missing"):
        run_handler(Mailer, topic="orders", group="mailer")


class Made:
    """An object that the test creates, and inspects afterwards."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def start(self) -> None:
        self.events.append("start")

    async def handle(self, batch: Batch) -> None:
        self.events.append(batch[0].body.decode())

    async def stop(self) -> None:
        self.events.append("stop")


def test_a_handler_object_is_started_and_stopped(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one")
    made = Made()
    run_handler(made, topic="orders", group="mailer")
    assert made.events == ["start", "one", "stop"]


def test_a_function_of_batch_and_options(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one")
    got: list[Any] = []
    run_handler(lambda batch, options: got.append(options), topic="orders", group="mailer", options={"a": 1})
    assert got == [{"a": 1}]


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


def test_a_handler_may_send(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one")

    async def answer(batch: Batch) -> None:
        await asyncio.to_thread(rocketmq.send, "answers", batch[0].body + b" answered")

    run_handler(answer, topic="orders", group="mailer")
    run_handler(lambda batch: rocketmq.send("answers", "by a thread"), topic="orders", group="other")
    assert [message.body for message in rocketmq.messages("answers")] == [b"one answered", b"by a thread"]


async def test_run_handler_works_in_an_async_test(rocketmq: RocketMQ, run_handler: Run, seen: Seen) -> None:
    rocketmq.send("orders", "one")
    assert len(run_handler(seen, topic="orders", group="mailer").acked) == 1


def test_each_test_has_its_own_broker(rocketmq: RocketMQ) -> None:
    assert rocketmq.messages("orders") == []
    with RocketMQ() as other:
        other.send("orders", "one")
        assert other.nameserver != rocketmq.nameserver
        assert rocketmq.messages("orders") == []
        assert len(other.messages("orders")) == 1
