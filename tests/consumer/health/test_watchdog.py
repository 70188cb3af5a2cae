"""Stalled queues of a scripted broker: their reports and their recovery."""

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
    """Shorten the watchdog's times, so that it restarts a pull before the pull's own deadline."""
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
    """Wait until a queue is shown and logged as stalled, for this cause."""
    await eventually(lambda: stall(m, number) is not None, f"queue {number} is stalled by {cause}")
    problem = stall(m, number)
    assert problem is not None
    assert problem.cause == cause, problem
    await eventually(lambda: any(number in entry["queues"] for entry in events(logs, "queue.stalled")), "it is logged")
    return problem


async def goes_on(m: Member, logs: Logs, cause: str, *, stays: bool = True) -> None:
    """Wait until the queue is not stalled any more; the start and the end must be logged once each."""
    await eventually(lambda: stall(m) is None, "the queue makes progress")
    await eventually(lambda: events(logs, "queue.recovered"), "the recovery is logged")
    [begin] = events(logs, "queue.stalled")
    [end] = events(logs, "queue.recovered")
    assert begin["cause"] == end["cause"] == cause
    assert begin["evidence"]
    assert begin["next"]
    if stays:
        await m.client.clock.sleep(STALL_SECONDS + CHECK_INTERVAL_SECONDS)
        assert stall(m) is None, "an idle queue is not stalled"


async def test_an_idle_queue_is_not_stalled(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """The broker may hold each pull for long, if it answers in time."""
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await seen.has(b"0")
        await flowing.sleep(60)
        assert stall(m) is None
    assert not events(logs, "queue.stalled")


async def test_a_slow_handler_is_named_with_its_message(
    broker: ScriptedBroker, queue: MessageQueue, logs: Logs, flowing: ManualClock
) -> None:
    """The state of the queue stays `handling`."""
    handle = Blocked()
    await broker.store(queue, b"0", b"1")
    async with member(broker.peer.address, handle, clock=flowing, concurrency=1) as m:
        problem = await stands_still(m, logs, "slow_handler")
        assert "offset 0" in problem.evidence
        assert state(m) == "handling"
        handle.release.set()
        await goes_on(m, logs, "slow_handler")


async def test_a_paused_queue_is_reported_and_keeps_its_state(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """The log level is info, because nothing is wrong."""
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
async def test_repeated_pull_failures_are_reported_with_their_cause(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, reply: Reply, cause: str, flowing: ManualClock
) -> None:
    """The queue is stuck until the first successful pull."""
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
async def test_an_unanswered_pull_is_reported_and_repeated(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull loop restarts at the same offset, long before the pull's own deadline."""
    monkeypatch.setattr("rmqd.consumer.pull.assigned_queue.PULL_UNANSWERED_SECONDS", 0.1)
    await broker.store(queue, b"0")
    broker.answer_pull(queue, None)
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        problem = await stands_still(m, logs, "stalled_queue")
        assert "no response" in problem.evidence
        await seen.has(b"0")
        await goes_on(m, logs, "stalled_queue", stays=False)  # the next pull is held for longer than the stall time
    assert len(events(logs, "queue.restarted")) == 1
    assert broker.pulled_offsets(queue)[:2] == [0, 0]


async def test_an_unknown_topic_is_a_problem_of_the_group(
    broker: ScriptedBroker, logs: Logs, flowing: ManualClock
) -> None:
    """The topic has no queue that could show the problem."""
    async with member(broker.peer.address, Seen(), clock=flowing, subscriptions=["missing"]) as m:
        await eventually(lambda: m.consumer.snapshot().problems, "the problem is reported")
        [problem] = m.consumer.snapshot().problems
        assert problem.cause == "topic_missing"
        assert "missing" in problem.evidence
        broker.create_topic("missing")
        await eventually(lambda: not m.consumer.snapshot().problems, "it is over")
    assert [entry["cause"] for entry in events(logs, "group.problem")] == ["topic_missing"]
    assert [entry["cause"] for entry in events(logs, "group.problem_ended")] == ["topic_missing"]


async def test_a_handler_that_always_fails_is_a_problem_of_the_group(
    broker: ScriptedBroker, queue: MessageQueue, logs: Logs, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No queue could show the problem: each message is sent back, so the queues make progress."""
    monkeypatch.setattr("rmqd.consumer.health.group_status.MIN_FAILING_SECONDS", 0.0)
    is_broken = True

    async def handle(batch: Batch) -> None:
        if is_broken:
            raise KeyError("city")

    def evidence() -> str:
        return "".join(problem.evidence for problem in m.consumer.snapshot().problems)

    await broker.store(queue, *[b"%d" % number for number in range(5)])
    async with member(broker.peer.address, handle, clock=flowing) as m:
        # wait for all five: a poll that saw the last failure and the first success together would count one of each
        await eventually(lambda: "5 attempts" in evidence(), "the problem is reported")
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


async def test_an_open_circuit_is_the_only_problem_of_a_failing_handler(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step for a failing handler is a pause, which would save no attempts here."""
    monkeypatch.setattr("rmqd.consumer.health.group_status.MIN_FAILING_SECONDS", 0.0)

    async def handle(_: Batch) -> None:
        raise ConnectionError("connection refused")

    await broker.store(queue, *[b"%d" % number for number in range(5)])
    async with member(broker.peer.address, handle, clock=flowing, circuit=CircuitOptions(4, 0.0, 30.0, 3600.0)) as m:
        await eventually(lambda: m.consumer.snapshot().problems, "the problem is reported")
        await flowing.sleep(30)
        assert [problem.cause for problem in m.consumer.snapshot().problems] == ["circuit_open"]


async def test_a_lower_offset_after_an_acquisition_is_reported_and_used(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, logs: Logs, flowing: ManualClock
) -> None:
    """A broker may have lost its newest offsets while another member owned the queue."""
    await broker.store(queue, b"0", b"1", b"2")
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await broker.committed(GROUP, queue, 3)
        broker.members[GROUP].insert(0, "0.0.0.0@first")
        m.consumer.on_consumer_ids_changed()
        await eventually(lambda: not m.owned(), "the queue is released")
        broker.offsets[GROUP, queue] = 1
        broker.members[GROUP].remove("0.0.0.0@first")
        m.consumer.on_consumer_ids_changed()
        await seen.has(b"0", b"1", b"2", b"1", b"2")
        assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 1}
    [entry] = events(logs, "offset.fell")
    assert (entry["offset"], entry["committed_before"]) == (1, 3)
