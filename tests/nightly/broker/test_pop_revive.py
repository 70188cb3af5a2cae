"""What the embedded broker does with popped messages, as 5.5.0: acknowledged, hidden for longer, shown again.

The core of these tests is in tests/broker/test_pop_revive.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.codes import ResponseCode
from rmqd.wire.headers.topic_headers import CreateTopicRequestHeader
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.receipt_handle import RetryFlag
from tests.broker.peer import Peer, connected
from tests.broker.popping import INVISIBLE_SECONDS, Got, ack, ack_all, hide, popped, texts
from tests.broker.records import records
from tests.broker.test_pop_revive import RETRY_V1, RETRY_V2, clock, later, one
from tests.clock import ManualClock

__all__ = ["clock"]


async def test_hiding_in_the_millisecond_of_the_pop(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    """A clock may stand still: handles differ by their invisible time then."""
    first = await one(peer)
    second = await hide(peer, first, 3)
    await ack(peer, first)
    later(embedded, clock, 3)

    [again] = await popped(peer)
    await ack(peer, second)

    assert again.message.reconsume_times == 1


async def test_a_void_handle_is_taken_and_means_nothing(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    first = await one(peer)
    later(embedded, clock)

    assert (await ack(peer, first)).code == 0

    assert texts(await popped(peer)) == ["a"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "4"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queueId": "-1"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": "2"}, ResponseCode.NO_MESSAGE),
        ({"offset": "-1"}, ResponseCode.NO_MESSAGE),
        ({"extraInfo": "0 1 2"}, ResponseCode.SYSTEM_ERROR),
    ],
)
@pytest.mark.parametrize("request_code", [200051, 200053])
async def test_what_is_refused(peer: Peer, request_code: int, fields: dict[str, str], code: ResponseCode) -> None:
    got = await one(peer)
    right = {"consumerGroup": "g", "topic": "T", "queueId": "0", "offset": "0", "invisibleTime": "1000"}

    reply = await peer.call(request_code, {**right, "extraInfo": str(got.handle), **fields})

    assert reply.code == code


async def test_a_group_that_cannot_be_hides_nothing(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """What it had hidden would come again in a topic whose name no broker takes."""
    got = await one(peer)
    await ack(peer, got)

    await hide(peer, got, 1, group="a@b")

    assert embedded.broker.revive.next_due_ms() is None


async def test_a_batch_without_acknowledgements_is_refused_and_strangers_are_passed_over(peer: Peer) -> None:
    got = await one(peer)

    assert (await ack_all(peer, [])).code == ResponseCode.NO_MESSAGE
    strange = Got(got.message, got.handle._replace(queue_id=3, queue_offset=99))
    assert (await ack_all(peer, [strange])).code == 0


async def test_the_second_form_of_retry_topics(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    """A broker that was switched over still gives what is in topics of the first form."""
    broker = embedded.broker
    await one(peer, b"old")
    later(embedded, clock)
    broker.change_settings(broker.settings.changed({"enableRetryTopicV2": "true"}))
    await peer.send("T", b"new", queue_id=1)
    assert texts(await popped(peer, queue_id=1)) in (["new"], ["new", "old"])
    later(embedded, clock)
    assert [stored.body for stored in records(broker.store, RETRY_V2)] == [b"new"]

    got: list[Got] = []
    while len(got) < 2:
        got += await popped(peer)

    assert {each.text: each.handle.retry for each in got} == {"old": RetryFlag.RETRY_V1, "new": RetryFlag.RETRY_V2}
    assert [(await ack(peer, each)).code for each in got] == [0, 0]
    later(embedded, clock)
    assert broker.schedule.next_due() is None


async def test_a_message_without_room_for_more_properties_comes_again_too(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    embedded.broker.store.put(StoredMessage(topic="T", body=b"a", properties={"big": "x" * 32750}))
    await popped(peer)
    later(embedded, clock)

    [stored] = records(embedded.broker.store, RETRY_V1)

    assert (stored.body, stored.reconsume_times, set(stored.properties)) == (b"a", 1, {"big"})


async def test_a_deleted_topic_takes_along_what_was_popped_of_it(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    """Else what is sent to a new topic of that name would come twice."""
    await one(peer)
    later(embedded, clock)
    await popped(peer)
    await one(peer)
    assert (await peer.call(215, {"topic": "T"})).code == 0
    assert embedded.broker.topics.get(RETRY_V1) is None
    create = CreateTopicRequestHeader(topic="T", read_queue_nums=1, write_queue_nums=1)
    await peer.call(create.code, create.ext_fields())
    await peer.send("T", b"new")
    later(embedded, clock)

    assert texts(await popped(peer)) == ["new"]


async def test_retention_leaves_what_is_hidden(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    """A message that was not handled is not lost because it is old."""
    await peer.send("T", b"gone")
    await peer.send("T", b"hidden")
    first, second = await popped(peer, invisible_time=100 * 3600 * 1000)
    await ack(peer, first)
    clock.turn(99 * 3600)

    assert embedded.broker.store.expire() == 1
    later(embedded, clock, 3600)

    assert texts(await popped(peer)) == [second.text] == ["hidden"]


async def test_what_came_again_before_a_restart_does_so_once(tmp_path: Path, clock: ManualClock) -> None:
    options = EmbeddedOptions(data_dir=tmp_path, topics={"T": 1})
    async with embedded_rocketmq(options, clock) as before, connected(before.broker.address) as peer:
        await one(peer)
        later(before, clock)

    async with embedded_rocketmq(options, clock) as after, connected(after.broker.address) as peer:
        later(after, clock)
        assert len(records(after.broker.store, RETRY_V1)) == 1
        assert texts(await popped(peer)) == ["a"]


async def test_it_comes_again_and_again(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    """RocketMQ has no limit here: the member gives up. The time of the first pop stays."""
    first = await one(peer)
    for attempt in range(1, 20):
        later(embedded, clock)
        [again] = await popped(peer)
        assert again.message.reconsume_times == attempt
        assert again.message.properties["1ST_POP_TIME"] == str(first.handle.pop_time)

    assert len(records(embedded.broker.store, RETRY_V1)) == 19
    await ack(peer, again)
    later(embedded, clock)
    assert await popped(peer) == []


async def test_other_groups_are_not_troubled(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    await one(peer)
    [other] = await popped(peer, group="h")
    await ack(peer, other, "h")
    later(embedded, clock)

    assert await popped(peer, group="h") == []
    assert texts(await popped(peer)) == ["a"]


@pytest.mark.parametrize(("percent", "retries"), [(0, 1), (100, 2)])
async def test_retries_come_first_as_often_as_the_setting_says(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, percent: int, retries: int
) -> None:
    """They come last where they do not come first, so that they are never starved altogether."""
    broker = embedded.broker
    broker.change_settings(broker.settings.changed({"popFromRetryProbability": str(percent)}))
    for number in range(2):
        await peer.send("T", b"old%d" % number)
    await popped(peer)
    later(embedded, clock)
    await peer.send("T", b"new")

    got = await popped(peer, max_msg_nums=2)

    assert sum(each.handle.retry == RetryFlag.RETRY_V1 for each in got) == retries


async def test_retries_are_filtered_as_the_topic_is(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    await peer.send("T", b"a", TAGS="a")
    await peer.send("T", b"b", TAGS="b")
    await popped(peer)
    later(embedded, clock)

    assert texts(await popped(peer, exp="b")) == ["b"]


async def test_what_is_hidden_outlives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    """Each of them comes at the time that its handle says; what was acknowledged does not."""
    options = EmbeddedOptions(data_dir=tmp_path, topics={"T": 1}, settings=BrokerSettings())
    async with embedded_rocketmq(options, clock) as before, connected(before.broker.address) as peer:
        for body in (b"acknowledged", b"hidden", b"for longer", b"not popped"):
            await peer.send("T", body)
        done, _, longer = await popped(peer, max_msg_nums=3)
        await ack(peer, done)
        await hide(peer, longer, INVISIBLE_SECONDS * 2)

    async with embedded_rocketmq(options, clock) as after, connected(after.broker.address) as peer:
        assert texts(await popped(peer)) == ["not popped"]
        later(after, clock)
        first = await popped(peer)
        assert "hidden" in texts(first)
        assert "for longer" not in texts(first)
        later(after, clock)
        assert "for longer" in texts(await popped(peer))
