"""One message that an operator has a member handle: what the handler gets, and what the operator hears of it."""

from __future__ import annotations

import asyncio
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
    """Ask the member, and check that nothing else came of it."""
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
async def test_the_operator_hears_what_the_handler_did(
    broker: ScriptedBroker, queue: MessageQueue, handle: Callable[[Batch], Any], result: str, remark: str | None
) -> None:
    """In RocketMQ's words; an exception with its place."""
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
async def test_orderly_groups_answer_in_their_words(
    broker: ScriptedBroker, queue: MessageQueue, handle: Callable[[Batch], Any], auto_commit: bool, result: str
) -> None:
    async with member(broker.peer.address, handle, consume_mode="orderly", auto_commit=auto_commit) as m:
        await runs(m)
        found = await consume(broker)
    assert (found.consume_result, found.order, found.auto_commit) == (result, True, auto_commit)


async def test_a_call_that_does_not_end_in_time_is_cut_off_and_said_so(
    broker: ScriptedBroker, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the broker gives up waiting, as it would tell the operator nothing."""
    monkeypatch.setattr("rmqd.consumer.admin.member_requests.RESPONSE_SECONDS", 0.1)
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


async def test_what_is_no_message_is_refused(broker: ScriptedBroker, queue: MessageQueue) -> None:
    record = encode_message(MESSAGE)
    async with member(broker.peer.address, succeed) as m:
        await runs(m)
        for body, reason in (
            (b"", "one message"),
            (record[:-1], "past"),
            (record * 2, "one message"),
            (corrupted(record, b"again"), "CRC"),
        ):
            answer = await broker.peer.ask(DIRECTLY, FIELDS, body)
            assert (answer.code, reason in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), answer.remark


async def ask(m: Member) -> tuple[int, str]:
    """The code of the answer, and its remark or the refusal."""
    try:
        answer = await m.consumer.on_request(RemotingCommand(DIRECTLY, ext_fields=FIELDS, body=encode_message(MESSAGE)))
    except RmqdError as error:
        return ResponseCode.SYSTEM_ERROR, str(error)
    assert answer is not None
    return answer[0], ConsumeMessageDirectlyResult.from_json(answer[3]).remark or ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("half of \ud83d"), DeadLetter("\ud83d"), NoText()])
async def test_whatever_it_raises_is_told(broker: ScriptedBroker, queue: MessageQueue, error: BaseException) -> None:
    async with member(broker.peer.address, raising(error)) as m:
        await runs(m)
        found = await consume(broker)
    assert found.consume_result in ("CR_THROW_EXCEPTION", "CR_LATER")
    assert found.remark
