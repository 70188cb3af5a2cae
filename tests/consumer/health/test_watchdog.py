"""Queues of a scripted broker that stand still: what is told of them, and that they go on."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import ResponseCode
from rmqd.consumer.consumer_options import CircuitOptions
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.health.watchdog import CHECK_INTERVAL_SECONDS, STALL_SECONDS
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

Logs = list[MutableMapping[str, Any]]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog restarts a pull before the pull's own deadline, which is sooner otherwise."""
    for name, seconds in {"CHECK_INTERVAL": 0.02, "STALL": 0.1, "LOOP_EXPIRY": 0.3}.items():
        monkeypatch.setattr(f"rmqd.consumer.health.watchdog.{name}_SECONDS", seconds)


@pytest.fixture
def logs() -> Iterator[Logs]:
    with capture_logs() as entries:
        yield entries


def events(logs: Logs, name: str) -> Logs:
    """The lines of one event, without those about the retry topic."""
    return [entry for entry in logs if entry["event"] == name and "%RETRY%" not in repr(entry)]


def stall(m: Member, number: int = 0) -> Problem | None:
    queue = m.queue(number)
    return None if queue is None else queue.stall


def state(m: Member, number: int = 0) -> str:
    queue = m.queue(number)
    return "" if queue is None else queue.state


async def stands_still(m: Member, logs: Logs, cause: str, number: int = 0) -> Problem:
    """Wait until a queue is shown and told to stand still; it must be for this cause."""
    await eventually(lambda: stall(m, number) is not None, f"queue {number} is seen to stand still for {cause}")
    problem = stall(m, number)
    assert problem is not None
    assert problem.cause == cause, problem
    await eventually(lambda: any(number in entry["queues"] for entry in events(logs, "queue.stalled")), "it is told")
    return problem


async def goes_on(m: Member, logs: Logs, cause: str, *, stays: bool = True) -> None:
    """Wait until nothing stands still any more; it must be told once, as its beginning was."""
    await eventually(lambda: stall(m) is None, "the queue is seen to move")
    await eventually(lambda: events(logs, "queue.recovered"), "the end is told")
    [begin] = events(logs, "queue.stalled")
    [end] = events(logs, "queue.recovered")
    assert begin["cause"] == end["cause"] == cause
    assert begin["evidence"]
    assert begin["next"]
    if stays:
        await m.client.clock.sleep(STALL_SECONDS + CHECK_INTERVAL_SECONDS)
        assert stall(m) is None, "a queue that has nothing to do does not stand still"


async def test_a_queue_that_has_nothing_to_do_does_not_stand_still(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """However long a pull is held by the broker, as long as it is answered in time."""
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await seen.has(b"0")
        await flowing.sleep(60)
        assert stall(m) is None
    assert not events(logs, "queue.stalled")


async def test_a_slow_handler_is_named_with_its_message(
    broker: ScriptedBroker, queue: MessageQueue, logs: Logs, flowing: ManualClock
) -> None:
    """The state of the queue stays what it is: it is being handled."""
    handle = Blocked()
    await broker.store(queue, b"0", b"1")
    async with member(broker.peer.address, handle, clock=flowing, concurrency=1) as m:
        problem = await stands_still(m, logs, "slow_handler")
        assert "offset 0" in problem.evidence
        assert state(m) == "handling"
        handle.release.set()
        await goes_on(m, logs, "slow_handler")


async def test_a_pause_is_told_and_keeps_its_state(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """Nothing more is wrong: it is told as information."""
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "it pulls")
        m.consumer.pause()
        await broker.store(queue, b"0", b"1")
        await stands_still(m, logs, "paused")
        assert state(m) == "paused"
        m.consumer.resume()
        await seen.has(b"0", b"1")
        await goes_on(m, logs, "paused")
    assert events(logs, "queue.stalled")[0]["log_level"] == "info"


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Reply(ResponseCode.NO_PERMISSION, "the topic[t] pulling message is forbidden"), "no_permission"),
        (Reply(ResponseCode.NO_PERMISSION, "subscription group no permission, g1"), "consumption_disabled"),
        (Reply(ResponseCode.SUBSCRIPTION_NOT_LATEST, "not latest"), "subscription_mismatch"),
        (Reply(ResponseCode.TOPIC_NOT_EXIST, "gone"), "topic_missing"),
        (Reply(ResponseCode.SYSTEM_ERROR, "store failed"), "pull_failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_pulls_that_fail_again_and_again_say_why(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, reply: Reply, cause: str, flowing: ManualClock
) -> None:
    """The queue is stuck, and goes on with the first pull that works."""
    await broker.store(queue, b"0")
    broker.answer_pull(queue, *[reply] * 10_000)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await stands_still(m, logs, cause)
        assert state(m) == "stuck"
        broker.forget_answers(queue)
        await seen.has(b"0")
        await goes_on(m, logs, cause)
    assert events(logs, "queue.stalled")[0]["log_level"] == "error"


@pytest.mark.usefixtures("hasty", "soon")
async def test_a_pull_that_nobody_answers_is_told_and_pulled_anew(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its own deadline; the loop begins at the same place."""
    monkeypatch.setattr("rmqd.consumer.pull.assigned_queue.PULL_UNANSWERED_SECONDS", 0.1)
    await broker.store(queue, b"0")
    broker.answer_pull(queue, None)
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        problem = await stands_still(m, logs, "stalled_queue")
        assert "no response" in problem.evidence
        await seen.has(b"0")
        await goes_on(m, logs, "stalled_queue", stays=False)  # the next pull is held for longer than patience lasts
    assert len(events(logs, "queue.restarted")) == 1
    assert broker.pulled_offsets(queue)[:2] == [0, 0]


async def test_a_topic_that_nobody_knows_is_a_problem_of_the_group(
    broker: ScriptedBroker, logs: Logs, flowing: ManualClock
) -> None:
    """There is no queue that could show it."""
    async with member(broker.peer.address, Seen(), clock=flowing, subscriptions=["missing"]) as m:
        await eventually(lambda: m.consumer.snapshot().problems, "it is told")
        [problem] = m.consumer.snapshot().problems
        assert problem.cause == "topic_missing"
        assert "missing" in problem.evidence
        broker.create_topic("missing")
        await eventually(lambda: not m.consumer.snapshot().problems, "it is over")
    assert [entry["cause"] for entry in events(logs, "group.problem")] == ["topic_missing"]
    assert [entry["cause"] for entry in events(logs, "group.problem_ended")] == ["topic_missing"]


async def test_a_handler_that_fails_at_everything_is_a_problem_of_the_group(
    broker: ScriptedBroker, queue: MessageQueue, logs: Logs, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queues move, as each message is sent back, and no queue could show it."""
    monkeypatch.setattr("rmqd.consumer.health.group_status.MIN_FAILING_SECONDS", 0.0)
    is_broken = True

    async def handle(batch: Batch) -> None:
        if is_broken:
            raise KeyError("city")

    def evidence() -> str:
        return "".join(problem.evidence for problem in m.consumer.snapshot().problems)

    await broker.store(queue, *[b"%d" % number for number in range(5)])
    async with member(broker.peer.address, handle, clock=flowing) as m:
        # of all five: a look that saw the last failure and the first success together would find as many of each
        await eventually(lambda: "5 attempts" in evidence(), "it is told")
        [problem] = m.consumer.snapshot().problems
        assert problem.cause == "failing_handler"
        assert "KeyError('city')" in problem.evidence
        error = m.topic().errors[-1]
        assert (error.error, error.topic) == ("KeyError('city')", TOPIC)
        is_broken = False
        await broker.store(queue, b"good")
        await eventually(lambda: not m.consumer.snapshot().problems, "it is over")
    assert [entry["cause"] for entry in events(logs, "group.problem")] == ["failing_handler"]
    assert [entry["cause"] for entry in events(logs, "group.problem_ended")] == ["failing_handler"]


async def test_an_open_circuit_is_the_only_problem_of_a_handler_that_fails(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step for a failing handler is a pause, which saves no attempts then."""
    monkeypatch.setattr("rmqd.consumer.health.group_status.MIN_FAILING_SECONDS", 0.0)

    async def handle(_: Batch) -> None:
        raise ConnectionError("connection refused")

    await broker.store(queue, *[b"%d" % number for number in range(5)])
    async with member(broker.peer.address, handle, clock=flowing, circuit=CircuitOptions(4, 0.0, 30.0, 3600.0)) as m:
        await eventually(lambda: m.consumer.snapshot().problems, "it is told")
        await flowing.sleep(30)
        assert [problem.cause for problem in m.consumer.snapshot().problems] == ["circuit_open"]


async def test_a_fall_at_a_take_over_is_told_and_the_brokers_value_holds(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """As after a broker lost its newest offsets while another member had the queue."""
    await broker.store(queue, b"0", b"1", b"2")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await broker.committed(GROUP, queue, 3)
        broker.members[GROUP].insert(0, "0.0.0.0@first")
        m.consumer.on_consumer_ids_changed()
        await eventually(lambda: not m.owned(), "the queue is given up")
        broker.offsets[GROUP, queue] = 1
        broker.members[GROUP].remove("0.0.0.0@first")
        m.consumer.on_consumer_ids_changed()
        await seen.has(b"0", b"1", b"2", b"1", b"2")
        assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 1}
    [entry] = events(logs, "offset.fell")
    assert (entry["offset"], entry["committed_before"]) == (1, 3)
