"""Topics of an unknown kind, which are refused before any message is read."""

from __future__ import annotations

import json

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import UnknownTopicKindError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually


def kind(**attributes: str) -> Reply:
    """The answer to GET_TOPIC_CONFIG."""
    named = {name.replace("_", "."): value for name, value in attributes.items()}
    return Reply(body=json.dumps({"topicName": TOPIC, "attributes": named}).encode())


@pytest.mark.parametrize("consume_mode", ["concurrently", "orderly", "pop"])
@pytest.mark.parametrize(("name", "value"), [("message_type", "TABLE"), ("queue_type", "TreeCQ")])
async def test_a_topic_of_an_unknown_kind_is_refused_with_the_name_of_the_kind(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, consume_mode: str, name: str, value: str
) -> None:
    """Nothing is pulled, popped or committed, so a version that knows the kind can read everything."""
    broker.peer.on(RequestCode.GET_TOPIC_CONFIG, kind(**{name: value}))
    await broker.store(queue, b"0")
    with pytest.raises(ExceptionGroup) as failed:
        async with member(broker.peer.address, seen, consume_mode=consume_mode) as m:
            await eventually(m.task.done, "the group fails")
    error: BaseException = failed.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, UnknownTopicKindError)
    assert f"{TOPIC} on a " in str(error)
    assert f"{name.replace('_', '.')}={value}" in str(error)
    codes = {RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET}
    assert not [request for request in broker.peer.requests if request.code in codes]
    assert seen.bodies == []


@pytest.mark.parametrize(
    "answer",
    [
        kind(message_type="PRIORITY", queue_type="RocksDBCQ", reserve_time="7"),
        Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 351 not supported"),
        Reply(ResponseCode.NO_PERMISSION, "User:me has no permission to access Topic:t1"),
        Reply(ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker"),
    ],
)
async def test_a_topic_without_an_unknown_kind_is_consumed(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, answer: Reply
) -> None:
    """Brokers before 5.0 have no kinds, and a user may have permission to consume but not to query the kind."""
    asked: list[RemotingCommand] = []

    def told(command: RemotingCommand) -> Reply:
        asked.append(command)
        return answer

    broker.peer.on(RequestCode.GET_TOPIC_CONFIG, told)
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05):
        await seen.has(b"0")
        await broker.committed(GROUP, queue, 1)
    assert [command.ext_fields["topic"] for command in asked] == [TOPIC]
