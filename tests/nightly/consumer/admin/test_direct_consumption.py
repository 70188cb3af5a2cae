"""Direct consumption: an operator lets a member handle one message, and receives the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import RmqdError
from rmqd.handler_api.batch import Batch, DeadLetter, Retry, Suspend
from rmqd.wire.bodies.group_bodies import ConsumeMessageDirectlyResult
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group_headers import ConsumeMessageDirectlyResultRequestHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.properties import RETRY_TOPIC
from rmqd.wire.topics import retry_topic
from tests.consumer.blocks import corrupted
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.handling.odd_handlers import NoText
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.waiting import eventually

DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
FIELDS = ConsumeMessageDirectlyResultRequestHeader(
    consumer_group=GROUP, client_id="x", msg_id="y", broker_name=BROKER, topic=TOPIC
).ext_fields()
MESSAGE = StoredMessage(topic=TOPIC, queue_id=3, body=b"again", queue_offset=17, properties={"KEYS": "k"})

pytestmark = pytest.mark.usefixtures("hasty")


async def consume(broker: ScriptedBroker, message: StoredMessage = MESSAGE) -> ConsumeMessageDirectlyResult:
    """Ask the member, and check that it sent and committed nothing else."""
    sent, commits = len(broker.sent) + len(broker.sent_back), list(broker.commits)
    answer = await broker.peer.ask(DIRECTLY, FIELDS, encode_message(message))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert len(broker.sent) + len(broker.sent_back) == sent
    assert broker.commits == commits
    return ConsumeMessageDirectlyResult.from_json(answer.body)


async def runs(member: Member) -> None:
    await eventually(lambda: member.queue() is not None, "it runs")


async def acknowledge(batch: Batch) -> None:
    batch.ack(batch[0])


async def acknowledge_and_raise(batch: Batch) -> None:
    batch.ack(batch[0])
    raise ValueError("after that")


async def ask_for_a_retry(batch: Batch) -> None:
    batch.retry(batch[0])


async def ask_for_a_dead_letter(batch: Batch) -> None:
    batch.dead_letter(batch[0], "unreadable")


def raising(error: BaseException) -> Callable[[Batch], Any]:
    async def handle(batch: Batch) -> None:
        raise error

    return handle


async def succeed(batch: Batch) -> None:
    pass


async def commit(batch: Batch) -> None:
    batch.commit()


async def roll_back(batch: Batch) -> None:
    batch.rollback()


@pytest.mark.parametrize(
    ("handle", "result", "remark"),
    [
        (succeed, "CR_SUCCESS", None),
        (acknowledge, "CR_SUCCESS", None),
        (acknowledge_and_raise, "CR_SUCCESS", "after that"),
        (ask_for_a_retry, "CR_LATER", None),
        (raising(Retry(3)), "CR_LATER", "retry at delay level 3"),
        (ask_for_a_dead_letter, "CR_LATER", "dead letter: unreadable"),
        (raising(DeadLetter("too old")), "CR_LATER", "dead letter: too old"),
        (raising(ValueError("no such order")), "CR_THROW_EXCEPTION", "ValueError: no such order, at "),
        (raising(SystemExit(1)), "CR_THROW_EXCEPTION", "SystemExit: 1"),
        (raising(asyncio.CancelledError()), "CR_THROW_EXCEPTION", "CancelledError"),
        (raising(StopAsyncIteration("x")), "CR_THROW_EXCEPTION", "StopAsyncIteration: x"),
    ],
)
async def test_the_response_reports_the_result_of_the_handler(
    broker: ScriptedBroker, queue: MessageQueue, handle: Callable[[Batch], Any], result: str, remark: str | None
) -> None:
    """Results have RocketMQ's names. The remark of an exception names its source line."""
    async with member(broker.peer.address, handle) as m:
        await runs(m)
        found = await consume(broker)
    assert (found.consume_result, found.order, found.auto_commit) == (result, False, True)
    assert found.remark is None if remark is None else remark in (found.remark or "")


@pytest.mark.parametrize(
    ("handle", "auto_commit", "result"),
    [
        (succeed, True, "CR_SUCCESS"),
        (raising(Suspend(1)), True, "CR_LATER"),
        (succeed, False, "CR_SUCCESS"),
        (commit, False, "CR_COMMIT"),
        (roll_back, False, "CR_ROLLBACK"),
    ],
)
async def test_orderly_groups_report_the_results_of_orderly_consumption(
    broker: ScriptedBroker, queue: MessageQueue, handle: Callable[[Batch], Any], auto_commit: bool, result: str
) -> None:
    async with member(broker.peer.address, handle, consume_mode="orderly", auto_commit=auto_commit) as m:
        await runs(m)
        found = await consume(broker)
    assert (found.consume_result, found.order, found.auto_commit) == (result, True, auto_commit)


async def test_a_call_that_exceeds_the_response_time_is_cancelled_and_reported(
    broker: ScriptedBroker, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member responds before the broker stops waiting. Otherwise the operator would get no result."""
    monkeypatch.setattr("rmqd.consumer.admin.member_requests.DIRECT_RESPONSE_SECONDS", 0.1)
    ended: list[str] = []

    async def handle(batch: Batch) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cut off")

    async with member(broker.peer.address, handle) as m:
        await runs(m)
        found = await consume(broker)
        await eventually(lambda: ended == ["cut off"], "the call was cancelled")
    assert found.consume_result == "CR_THROW_EXCEPTION"
    assert "took longer than 100 ms" in (found.remark or "")


async def test_an_invalid_message_is_refused(broker: ScriptedBroker, queue: MessageQueue) -> None:
    record = encode_message(MESSAGE)
    async with member(broker.peer.address, succeed) as m:
        await runs(m)
        for body, reason in (
            (b"", "one message"),
            (record[:-1], "after the end"),
            (record * 2, "one message"),
            (corrupted(record, b"again"), "CRC"),
        ):
            answer = await broker.peer.ask(DIRECTLY, FIELDS, body)
            assert (answer.code, reason in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), answer.remark


async def ask(m: Member) -> tuple[int, str]:
    """The response code, and the remark or the error text."""
    try:
        answer = await m.consumer.on_request(RemotingCommand(DIRECTLY, ext_fields=FIELDS, body=encode_message(MESSAGE)))
    except RmqdError as error:
        return ResponseCode.SYSTEM_ERROR, str(error)
    assert answer is not None
    return answer[0], ConsumeMessageDirectlyResult.from_json(answer[3]).remark or ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("half of \ud83d"), DeadLetter("\ud83d"), NoText()])
async def test_every_exception_has_a_remark(broker: ScriptedBroker, queue: MessageQueue, error: BaseException) -> None:
    async with member(broker.peer.address, raising(error)) as m:
        await runs(m)
        found = await consume(broker)
    assert found.consume_result in ("CR_THROW_EXCEPTION", "CR_LATER")
    assert found.remark


pytestmark = pytest.mark.usefixtures("hasty")


async def test_a_hung_thread_keeps_its_slot(
    broker: ScriptedBroker, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated requests of an operator must not create threads without limit."""
    monkeypatch.setattr("rmqd.consumer.admin.member_requests.DIRECT_RESPONSE_SECONDS", 0.1)
    go_on, calls = threading.Event(), list[Batch]()

    def handle(batch: Batch) -> None:
        calls.append(batch)
        go_on.wait(5)

    async with member(broker.peer.address, handle, is_async=False, concurrency=1) as m:
        await runs(m)
        assert "took longer than" in (await ask(m))[1]
        assert "none finished within 100 ms" in (await ask(m))[1]
        assert len(calls) == 1
        go_on.set()
        remarks = ["none finished"]
        while "none finished" in remarks[-1]:
            remarks.append((await ask(m))[1])
        assert len(calls) == 2


async def test_the_handler_gets_the_message_as_if_pulled_from_its_queue(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """A retried message has its original topic. All slots are busy, and the group is paused."""
    seen: list[Batch] = []
    go_on = asyncio.Event()

    async def handle(batch: Batch) -> None:
        seen.append(batch)
        if batch[0].body == b"blocks":
            await go_on.wait()

    await broker.store(queue, b"blocks")
    async with member(broker.peer.address, handle, concurrency=1) as m:
        await eventually(lambda: len(seen) == 1, "the only slot is taken")
        m.consumer.pause()
        await consume(broker)
        retried = StoredMessage(topic=retry_topic(GROUP), body=b"r", properties={RETRY_TOPIC: TOPIC}, reconsume_times=2)
        await consume(broker, retried)
        go_on.set()
    (_, first, second) = seen
    assert (first.message_queue, len(first)) == (MessageQueue(TOPIC, BROKER, 3), 1)
    assert (first[0].body, first[0].keys, first[0].queue_offset, first[0].queue_id) == (b"again", "k", 17, 3)
    assert (second[0].topic, second[0].reconsume_times) == (TOPIC, 2)
    assert second.message_queue.topic == retry_topic(GROUP)


async def test_a_synchronous_handler_is_called_in_its_thread(broker: ScriptedBroker, queue: MessageQueue) -> None:
    seen: list[str] = []

    def handle(batch: Batch) -> None:
        seen.append(threading.current_thread().name)
        raise KeyError("x")

    async with member(broker.peer.address, handle, is_async=False) as m:
        await runs(m)
        found = await consume(broker)
    assert found.consume_result == "CR_THROW_EXCEPTION"
    assert seen == ["testing-0"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_concurrency_limits_simultaneous_calls(
    broker: ScriptedBroker, queue: MessageQueue, is_async: bool
) -> None:
    """The other requests wait for a free slot."""
    at_once = [0]
    go_on = threading.Event()

    def begin_and_end(by: int) -> None:
        at_once.append(at_once[-1] + by)

    async def handle(batch: Batch) -> None:
        begin_and_end(1)
        await asyncio.to_thread(go_on.wait, 5)
        begin_and_end(-1)

    def handle_in_thread(batch: Batch) -> None:
        begin_and_end(1)
        go_on.wait(5)
        begin_and_end(-1)

    async with member(
        broker.peer.address, handle if is_async else handle_in_thread, is_async=is_async, concurrency=2
    ) as m:
        await runs(m)
        answers = [asyncio.create_task(ask(m)) for _ in range(6)]
        await eventually(lambda: len(at_once) >= 3, "two calls have begun")
        go_on.set()
        assert await asyncio.gather(*answers) == [(ResponseCode.SUCCESS, "")] * 6
    assert max(at_once) == 2


async def test_a_running_call_is_cancelled_when_the_group_stops(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """The call ends before the handler is stopped, and the connection closes without an error."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with member(broker.peer.address, handle) as m:
        await runs(m)
        await broker.peer.push(DIRECTLY, FIELDS, encode_message(MESSAGE))
        await begun.wait()
        await m.stop()
        assert ended.is_set()
        with pytest.raises(RmqdError, match="is stopping"):
            await m.consumer.on_request(RemotingCommand(DIRECTLY, ext_fields=FIELDS, body=encode_message(MESSAGE)))


async def test_requests_beyond_the_waiting_limit_are_refused(
    broker: ScriptedBroker, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remark asks the operator to try again."""
    monkeypatch.setattr("rmqd.consumer.admin.member_requests.MAX_WAITING_MESSAGES", 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        begun.set()
        await go_on.wait()

    async with member(broker.peer.address, handle, concurrency=1) as m:
        await runs(m)
        first = asyncio.create_task(ask(m))
        await begun.wait()
        second = asyncio.create_task(ask(m))
        await asyncio.sleep(0)
        code, remark = await ask(m)
        assert code == ResponseCode.SYSTEM_ERROR
        assert "the handler already has 1 messages from operators, and 1 more wait" in remark
        go_on.set()
        assert [await first, await second] == [(ResponseCode.SUCCESS, "")] * 2
