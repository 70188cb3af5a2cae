"""A popping member with a scripted broker: its requests, and its reaction to unusual responses."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.topics import pop_retry_topic
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.blocks import with_bit_flipped
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import member
from tests.consumer.pop.test_answers import PopBroker, pop, popping
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["pop"]

pytestmark = pytest.mark.usefixtures("unpaced")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"messageQueueAssignments":null}'])
async def test_an_empty_response_keeps_the_assignment_and_is_queried_again(
    pop: PopBroker, seen: Seen, body: bytes
) -> None:
    """A restarted broker does not know the member yet, and gets a heartbeat at once."""
    async with member(pop.address, seen, consume_mode="pop") as one:
        await eventually(lambda: popping(one), "it pops")
        beats = len(pop.peer.got(RequestCode.HEART_BEAT))
        pop.peer.on(RequestCode.QUERY_ASSIGNMENT, Reply(body=body))
        asked = len(pop.peer.got(RequestCode.QUERY_ASSIGNMENT))
        one.consumer.on_consumer_ids_changed()
        await pop.peer.received(RequestCode.QUERY_ASSIGNMENT, asked + 8)  # two topics, two rounds, each asked twice
        assert len(pop.peer.got(RequestCode.HEART_BEAT)) > beats
        assert popping(one)
        pop.add(4)
        await seen.has(b"x")


async def test_an_assignment_without_queues_ends_the_popping(pop: PopBroker, seen: Seen) -> None:
    async with member(pop.address, seen, consume_mode="pop") as one:
        await eventually(lambda: popping(one), "it pops")
        pop.peer.on(RequestCode.QUERY_ASSIGNMENT, Reply(body=b'{"messageQueueAssignments":[]}'))
        one.consumer.on_consumer_ids_changed()
        await eventually(lambda: not one.consumer.snapshot().queues, "it has no queue")


async def test_a_member_without_queues_subscribes_to_the_pop_retry_topics(
    pop: PopBroker, broker: ScriptedBroker, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last heartbeat of any member sets the group's subscriptions. Without these topics, others' pulls are refused.

    In a group that pops, every member has a queue. So a member without queues is in a group that pulls.
    """
    monkeypatch.setattr("rmqd.consumer.pop.pop_retries.RETRY_TOPIC_POLL_SECONDS", 0.1)
    retry = pop_retry_topic(GROUP, TOPIC)
    broker.create_topic(retry)

    def end(asked: RemotingCommand) -> Reply:
        return Reply(ext_fields={"offset": "1" if asked.ext_fields["topic"] == retry else "0"})

    pop.peer.on(RequestCode.GET_MAX_OFFSET, end)
    pop.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Reply(ext_fields={"offset": "0"}))
    pop.peer.on(RequestCode.QUERY_ASSIGNMENT, Reply(body=b'{"messageQueueAssignments":[]}'))
    async with member(pop.address, seen, consume_mode="pop"):
        await eventually(
            lambda: any(retry.encode() in beat.body for beat in pop.peer.got(RequestCode.HEART_BEAT)),
            "heartbeats name the pop retry topic",
        )


async def test_a_new_group_starts_at_a_timestamp_by_committing_offsets(
    pop: PopBroker, broker: ScriptedBroker, seen: Seen
) -> None:
    """It commits before the first pop, and only for queues without an offset: queue 1 has been read before."""
    old, new = MessageQueue(TOPIC, BROKER, 1), MessageQueue(TOPIC, BROKER, 0)
    for queue in (old, new):
        await broker.store(queue, b"before", store_timestamp=1000)
        await broker.store(queue, b"then", store_timestamp=2000)
    broker.offsets[GROUP, old] = 2
    broker.knows_groups = False
    async with member(pop.address, seen, consume_mode="pop", consume_from_where="timestamp", consume_timestamp_ms=1500):
        await pop.peer.received(RequestCode.POP_MESSAGE)
        codes = [command.code for command in pop.peer.requests]
        of_topic = [commit for commit in broker.commits if commit[0].topic == TOPIC]
    assert of_topic == [(new, 1)]
    assert codes.index(RequestCode.UPDATE_CONSUMER_OFFSET) < codes.index(RequestCode.POP_MESSAGE)


async def test_a_late_response_does_not_delay_the_next_renewal(pop: PopBroker, flowing: ManualClock) -> None:
    """The invisible time counts from the request, so the response time is not added to the interval."""
    handler, asked = Blocked(), list[float]()

    async def change(command: RemotingCommand) -> Reply:
        asked.append(flowing.now)
        await flowing.sleep(2)
        return pop._change(command)

    pop.peer.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
    pop.add(4, invisible_ms=15_000)
    async with member(pop.address, handler, consume_mode="pop", clock=flowing, pop_invisible_time_seconds=15.0) as one:
        await eventually(lambda: one.topic().received, "the message is received")
        await eventually(lambda: len(asked) == 3, "it is renewed three times")
        handler.release.set()
        await eventually(lambda: one.topic().handled["acked"], "it is done")
    first, second, third = asked
    assert 9 < second - first < 11
    assert 9 < third - second < 11


async def test_messages_of_a_held_pop_become_visible_after_the_group_stopped(pop: PopBroker) -> None:
    """The process continues with other groups, and the broker may answer the pop for up to 15 s more."""
    async with member(pop.address, Seen(), consume_mode="pop") as one:
        await eventually(lambda: pop.peer.got(RequestCode.POP_MESSAGE), "a pop is held")
        await one.stop()
        pop.add(9)
        await eventually(lambda: [handle.queue_offset for handle in pop.changes] == [9], "it is made visible")


@pytest.mark.parametrize("at", [2, 4, 86], ids=["size", "magic", "parts"])
async def test_an_undecodable_message_is_not_acknowledged_and_costs_no_connection(
    pop: PopBroker, broker: ScriptedBroker, seen: Seen, at: int
) -> None:
    """The other messages of its pop are handled."""
    good, bad = (
        encode_message(StoredMessage(topic=TOPIC, queue_id=0, queue_offset=offset, body=b"body%d" % offset))
        for offset in (4, 5)
    )
    pop.add(4, 5, record=good + with_bit_flipped(bad, at))
    async with member(pop.address, seen, consume_mode="pop", on_corrupt_message="skip") as one:
        pop.add(6)
        await seen.has(b"body4", b"x")
        await eventually(lambda: (0, 6, 6) in pop.acked(), "the next one is acknowledged")
        figures = one.client.snapshot()
        assert (figures.corrupt_frames, figures.doubted_replies) == (0, 1)
    assert (0, 4, 5) not in pop.acked()


async def test_a_broker_that_takes_0_for_the_year_1970_gets_the_current_time(pop: PopBroker, seen: Seen) -> None:
    pop.pops.append(Reply(ResponseCode.POLLING_TIMEOUT, "the broker pop message is timeout too much"))
    pop.add(4)
    async with member(pop.address, seen, consume_mode="pop"):
        await seen.has(b"x")
        first, second = (await pop.peer.received(RequestCode.POP_MESSAGE, 2))[:2]
    assert first.ext_fields["bornTime"] == "0"
    assert int(second.ext_fields["bornTime"]) > 1_600_000_000_000


async def test_stalls_and_recoveries_are_logged_with_their_cause(
    pop: PopBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("CHECK_INTERVAL_SECONDS", 0.02), ("STALL_SECONDS", 0.1)):
        monkeypatch.setattr(f"rmqd.consumer.health.watchdog.{name}", seconds)
    monkeypatch.setattr("rmqd.consumer.assigned.stall_facts.SLOW_CALL_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.pop.pop_loop.FAILED_PULL_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.pull.pull_request.FAILED_PULL_PAUSE_SECONDS", 0.05)
    handler = Blocked()

    with capture_logs() as logs:

        def told() -> list[tuple[str, str]]:
            stalls = [entry for entry in logs if entry["event"] in ("queue.stalled", "queue.recovered")]
            return [(entry["event"], entry["cause"]) for entry in stalls]

        async with member(pop.address, handler, consume_mode="pop") as one:
            await eventually(lambda: popping(one), "it pops")
            pop.add(4)
            expected = [("queue.stalled", "slow_handler")]
            await eventually(lambda: told() == expected, "the slow handler is logged")
            handler.release.set()
            expected += [("queue.recovered", "slow_handler")]
            await eventually(lambda: told() == expected, "its recovery is logged")
            pop.peer.on(RequestCode.POP_MESSAGE, Reply(ResponseCode.NO_PERMISSION, "not you"))
            pop.add(5)
            expected += [("queue.stalled", "no_permission")]
            await eventually(lambda: told() == expected, "the refused pops are logged")
            queue = one.queue(-1)
            assert queue is not None
            assert queue.stall is not None
            assert (queue.state, queue.stall.cause) == ("stuck", "no_permission")
