"""Popped messages in the embedded broker, as in 5.5.0: acknowledged, invisible for longer, redelivered.

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


async def test_the_invisible_time_is_changed_in_the_millisecond_of_the_pop(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    """If the clock has not advanced, the handles differ only by their invisible time."""
    first = await one(peer)
    second = await hide(peer, first, 3)
    await ack(peer, first)
    later(embedded, clock, 3)

    [again] = await popped(peer)
    await ack(peer, second)

    assert again.message.reconsume_times == 1


async def test_an_acknowledgement_with_an_expired_handle_has_no_effect(
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
async def test_invalid_requests_about_popped_messages_are_rejected(
    peer: Peer, request_code: int, fields: dict[str, str], code: ResponseCode
) -> None:
    got = await one(peer)
    right = {"consumerGroup": "g", "topic": "T", "queueId": "0", "offset": "0", "invisibleTime": "1000"}

    reply = await peer.call(request_code, {**right, "extraInfo": str(got.handle), **fields})

    assert reply.code == code


async def test_a_group_with_an_invalid_name_makes_no_message_invisible(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """The name of its retry topic would be invalid, so no broker could redeliver the message."""
    got = await one(peer)
    await ack(peer, got)

    await hide(peer, got, 1, group="a@b")

    assert embedded.broker.revive.next_due_ms() is None


async def test_an_empty_batch_acknowledgement_is_rejected_and_unknown_messages_skipped(peer: Peer) -> None:
    got = await one(peer)

    assert (await ack_all(peer, [])).code == ResponseCode.NO_MESSAGE
    strange = Got(got.message, got.handle._replace(queue_id=3, queue_offset=99))
    assert (await ack_all(peer, [strange])).code == 0


async def test_retry_topics_v2_are_used_next_to_retry_topics_v1(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    """After the switch the broker still delivers messages in the V1 topics."""
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


async def test_a_message_without_room_for_more_properties_is_redelivered(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    embedded.broker.store.put(StoredMessage(topic="T", body=b"a", properties={"big": "x" * 32750}))
    await popped(peer)
    later(embedded, clock)

    [stored] = records(embedded.broker.store, RETRY_V1)

    assert (stored.body, stored.reconsume_times, set(stored.properties)) == (b"a", 1, {"big"})


async def test_deleting_a_topic_deletes_its_popped_messages(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    """Otherwise a message of a new topic with that name would be delivered twice."""
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


async def test_retention_keeps_invisible_messages(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    """An old message that was not handled is not lost."""
    await peer.send("T", b"gone")
    await peer.send("T", b"hidden")
    first, second = await popped(peer, invisible_time=100 * 3600 * 1000)
    await ack(peer, first)
    clock.turn(99 * 3600)

    assert embedded.broker.store.expire() == 1
    later(embedded, clock, 3600)

    assert texts(await popped(peer)) == [second.text] == ["hidden"]


async def test_a_message_revived_before_a_restart_is_not_revived_again(tmp_path: Path, clock: ManualClock) -> None:
    options = EmbeddedOptions(data_dir=tmp_path, topics={"T": 1})
    async with embedded_rocketmq(options, clock) as before, connected(before.broker.address) as peer:
        await one(peer)
        later(before, clock)

    async with embedded_rocketmq(options, clock) as after, connected(after.broker.address) as peer:
        later(after, clock)
        assert len(records(after.broker.store, RETRY_V1)) == 1
        assert texts(await popped(peer)) == ["a"]


async def test_a_message_is_redelivered_without_a_limit(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    """As in RocketMQ, members limit the retries. The time of the first pop stays."""
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


async def test_other_groups_get_no_retries(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    await one(peer)
    [other] = await popped(peer, group="h")
    await ack(peer, other, "h")
    later(embedded, clock)

    assert await popped(peer, group="h") == []
    assert texts(await popped(peer)) == ["a"]


@pytest.mark.parametrize(("percent", "retries"), [(0, 1), (100, 2)])
async def test_the_share_of_pops_with_retries_first_is_a_setting(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, percent: int, retries: int
) -> None:
    """Other pops read the retries last, so that retries are never starved."""
    broker = embedded.broker
    broker.change_settings(broker.settings.changed({"popFromRetryProbability": str(percent)}))
    for number in range(2):
        await peer.send("T", b"old%d" % number)
    await popped(peer)
    later(embedded, clock)
    await peer.send("T", b"new")

    got = await popped(peer, max_msg_nums=2)

    assert sum(each.handle.retry == RetryFlag.RETRY_V1 for each in got) == retries


async def test_retries_are_filtered_like_the_topic(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    await peer.send("T", b"a", TAGS="a")
    await peer.send("T", b"b", TAGS="b")
    await popped(peer)
    later(embedded, clock)

    assert texts(await popped(peer, exp="b")) == ["b"]


async def test_invisible_messages_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    """Each is redelivered at the time of its handle. Acknowledged messages are not."""
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
