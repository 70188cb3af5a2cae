"""Offsets that must not go back because of a slave, a response or a commit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

MOVED = ResponseCode.PULL_OFFSET_MOVED

pytestmark = pytest.mark.usefixtures("hasty")


def header(reply: Reply, **changes: int) -> Reply:
    """A reply with other fields in its header."""
    fields = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)._replace(**changes)
    return replace(reply, ext_fields=fields.ext_fields())


@pytest.mark.parametrize("with_master", [True, False], ids=["master_there", "master_away"])
async def test_a_slave_does_not_move_an_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, with_master: bool, flowing: ManualClock
) -> None:
    """Only the master may correct an offset, because a slave may lag behind it."""
    asked: list[int] = []
    async with Peer() as slave:

        def illegal(command: RemotingCommand) -> Reply | None:
            pull = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
            if pull.topic != TOPIC:
                return None
            asked.append(pull.queue_offset)
            return Reply(MOVED, "OFFSET_OVERFLOW_BADLY", PullMessageResponseHeader(1, 0, 1, 1).ext_fields())

        broker.create_topic(retry_topic(GROUP))
        broker.serve(slave, 1, with_master=with_master)
        slave.on(RequestCode.PULL_MESSAGE, illegal)
        await broker.store(queue, b"0", b"1", b"2", b"3")
        broker.offsets[GROUP, queue] = 2
        found = broker.found(queue, broker.records(queue, 2, 3), 3)
        broker.answer_pull(queue, header(found, suggest_which_broker_id=1))
        async with member(broker.peer.address, seen, clock=flowing, persist_consumer_offset_interval_seconds=0.05) as m:
            if with_master:
                await seen.has(b"2", b"3")
                await broker.committed(GROUP, queue, 4)
            else:
                await eventually(lambda: len(asked) > 3, "the slave is pulled repeatedly")
                assert not seen.bodies
            assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
    assert set(asked) == ({3} if with_master else {2})
    assert 1 not in broker.commits_of(queue)


async def test_a_masters_correction_moves_the_offset_and_counts_as_a_fall(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a correction below the committed offset counts as a fall."""
    monkeypatch.setattr("rmqd.consumer.pull.offset_moves.SUSPECT_SECONDS", 0)
    await broker.store(queue, *[b"%d" % number for number in range(6)])
    broker.offsets[GROUP, queue] = 4
    broker.answer_pull(
        queue, broker.nothing(queue, MOVED, 5, "OFFSET_TOO_SMALL"), broker.nothing(queue, MOVED, 2, "OVERFLOW")
    )
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
            await seen.has(b"2", b"3", b"4", b"5")
            await broker.committed(GROUP, queue, 6)
            assert m.topic().falls == {"operator": 0, "corrected": 1, "take_over": 0}
    assert [entry["corrected"] for entry in logs if entry["event"] == "offset.corrected"] == [5, 2]


async def test_a_fall_by_an_operators_reset_has_a_separate_count(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    await broker.store(queue, b"0", b"1", b"2")
    broker.offsets[GROUP, queue] = 2
    broker.answer_pull(queue, broker.nothing(queue, MOVED, 0, "OFFSET_RESET"))
    async with member(broker.peer.address, seen) as m:
        await seen.has(b"0", b"1", b"2")
        assert m.topic().falls == {"operator": 1, "corrected": 0, "take_over": 0}


async def test_failed_commits_are_counted_and_repeated(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """Otherwise the next owner would start too low."""
    await broker.store(queue, b"0", b"1")
    broker.offsets[GROUP, queue] = 0
    broker.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await eventually(lambda: m.consumer.snapshot().commit_failures > 2, "failures are counted")
        broker.peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, broker.update)
        await broker.committed(GROUP, queue, 2)


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY])
async def test_a_lower_next_offset_is_ignored(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, code: ResponseCode
) -> None:
    """Only code 21 moves an offset back."""
    await broker.store(queue, b"0", b"1", b"2")
    broker.offsets[GROUP, queue] = 2
    broker.answer_pull(queue, broker.nothing(queue, code, 0), broker.nothing(queue, code, 1))
    async with member(broker.peer.address, seen):
        await seen.has(b"2")
    assert set(broker.pulled_offsets(queue)) == {2, 3}


async def test_a_master_with_fewer_messages_for_a_moment_moves_no_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a new or a demoted master. The pull is repeated, and logged once."""
    monkeypatch.setattr("rmqd.consumer.pull.offset_moves.SUSPECT_SECONDS", 60)
    await broker.store(queue, *[b"%d" % number for number in range(6)])
    broker.offsets[GROUP, queue] = 4
    less = broker.nothing(queue, MOVED, 2, "OFFSET_OVERFLOW_BADLY")
    broker.answer_pull(queue, less, less, less)
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
            await seen.has(b"4", b"5")
            await broker.committed(GROUP, queue, 6)
            assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
    assert broker.pulled_offsets(queue)[:4] == [4, 4, 4, 4]
    assert broker.commits_of(queue) == sorted(broker.commits_of(queue))
    [doubted] = [entry for entry in logs if entry["event"] == "offset.doubted"]
    assert (doubted["committed"], doubted["broker_offers"]) == (4, 2)
