"""Static topics that mqadmin remaps under load: rmqd next to Java, with groups that fail, wait or restart."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS
from rmqd.handler_api.batch import Batch
from tests.conformance import behaviour
from tests.consumer.members import Member, member
from tests.nightly.integration.static_topics import EVERYWHERE, QUEUES, remap, send, static_topic
from tests.rocketmq import RealCluster, ledger
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import PeerOptions, start_consumer, start_producer
from tests.seen import Handled, Seen
from tests.waiting import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]

MESSAGES, RATE = 3000, 200
MOVES = (("-b", "broker-a"), ("-b", "broker-b"), EVERYWHERE)
BUSY_SECONDS = 0.002


def finished(path: Path) -> list[str]:
    """The keys that a Java consumer has handled."""
    return [entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH]


def first_attempts(seen: Seen) -> list[Handled]:
    return [attempt for attempt in seen.attempts if not attempt.reconsume_times]


def out_of_order(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The messages that arrived after a higher offset of the same queue."""
    last: dict[int, int] = {}
    found = []
    for queue, offset in places:
        if offset <= last.get(queue, -1):
            found.append((queue, offset))
        last[queue] = max(offset, last.get(queue, -1))
    return found


def repeated(m: Member) -> dict[str, int]:
    """The duplicates that a member counts in its topics, by cause."""
    return dict(sum((Counter(topic.duplicates) for topic in m.consumer.snapshot().topics), Counter()))


@behaviour(
    "queues",
    "Queues of a static topic that move under load lose and repeat no message, and keep their order",
    java="the same queues continue at their new leaders, as soon as the route is read again",
    rmqd="the same; if a previous leader rejects a commit, the route is read at once",
    checked=(
        "three moves while 200 messages a second are sent: concurrent groups with failures, orderly "
        "groups, and a group that is stopped during a move; compared with a concurrent and an orderly "
        "Java consumer"
    ),
    since="5.0",
    long=True,
)
async def test_queues_that_move_under_load_lose_nothing_and_keep_their_order(
    rocketmq_pair: RealCluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    topic, nameserver = static_topic(rocketmq_pair, request.node.name), rocketmq_pair.nameserver
    failing, orderly, away = Seen(), Seen(), Seen()

    async def fail_some(batch: Batch) -> None:
        await failing(batch)
        await asyncio.sleep(BUSY_SECONDS)
        if not batch[0].reconsume_times and (batch[0].keys or "").endswith("07"):
            raise RuntimeError("not now")

    async def in_order(batch: Batch) -> None:
        await orderly(batch)
        await asyncio.sleep(BUSY_SECONDS)

    def one(handle: Any, name: str, mode: str = "concurrently") -> contextlib.AbstractAsyncContextManager[Member]:
        begin: dict[str, Any] = {"subscriptions": [topic], "consume_from_where": "first_offset", "consume_mode": mode}
        return member(nameserver, handle, group=name, **begin)

    absent = fresh_name("away", "group")
    async with contextlib.AsyncExitStack() as running:
        members = [
            await running.enter_async_context(one(fail_some, fresh_name("failing", "group"))),
            await running.enter_async_context(one(in_order, fresh_name("orderly", "group"), "orderly")),
        ]
        java = {kind: tmp_path / kind for kind in ("concurrently", "orderly")}
        for kind, path in java.items():
            name, ordered = fresh_name(f"java_{kind}", "group"), kind == "orderly"
            peer = PeerOptions(nameserver, topic, path)
            running.enter_context(start_consumer(peer, name, orderly=ordered, handle_millis=2))
        async with one(away, absent) as early:
            for m in (*members, early):
                await eventually(lambda: len(m.owned()) == QUEUES, "it has the queues")  # noqa: B023 awaited in the loop
            peer = PeerOptions(nameserver, topic, tmp_path / "sent")
            producer = running.enter_context(start_producer(peer, MESSAGES, rate=RATE))
            await eventually(lambda: len(away.keys) > 200, "the group handles messages before it stops")
            await early.stop()
        for number, target in enumerate(MOVES):
            await asyncio.to_thread(remap, rocketmq_pair, topic, *target)
            if not number:  # the group restarts right after the first move
                members.append(await running.enter_async_context(one(away, absent)))
            handled = len(orderly.keys)
            await eventually(lambda: len(orderly.keys) > handled + RATE, "queues are read where they are now")  # noqa: B023 awaited in the loop
        assert await asyncio.to_thread(producer.wait, 60) == 0
        sent = {entry.key for entry in ledger.read(tmp_path / "sent") if entry.event == ledger.SENT}
        for seen in (failing, orderly, away):
            await eventually(lambda: len({one.key for one in first_attempts(seen)}) == MESSAGES, "all are handled", 60)  # noqa: B023 awaited in the loop
        await eventually(lambda: all(set(finished(path)) == sent for path in java.values()), "Java has all", 60)
        again = sum(key.endswith("07") for key in sent)
        await eventually(lambda: len(failing.keys) == MESSAGES + again, "failed messages are redelivered")
        assert [repeated(m) for m in members] == [{}, {}, {}]
    once = Counter(sent)
    for seen in (failing, orderly, away):
        assert Counter(one.key for one in first_attempts(seen)) == once
    assert [Counter(finished(path)) for path in java.values()] == [once, once]
    assert out_of_order((one.queue.queue_id, one.offset) for one in orderly.attempts) == []
    begun = [entry for entry in ledger.read(java["orderly"]) if entry.event == ledger.START]
    assert out_of_order((entry.queue, entry.offset) for entry in begun) == []


@behaviour(
    "operators",
    "`resetOffsetByTime` moves an idle group of a static topic back, in moved queues as far as the move",
    java=(
        "with the next pull of each queue; brokers do not report the reset there, and the last leader "
        "knows only its own part"
    ),
    rmqd="the same",
    checked="mqadmin on a Java consumer and on rmqd, to the beginning of a topic with two moved queues",
    since="5.0",
    long=True,
)
async def test_an_idle_group_of_a_static_topic_moves_back(
    rocketmq_pair: RealCluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    topic, seen, theirs = static_topic(rocketmq_pair, request.node.name), Seen(), tmp_path / "java"
    ours, java = fresh_name("rmqd", "group"), fresh_name("java", "group")
    begin = str(int(time.time() * 1000) - 1000)
    options: dict[str, Any] = {"subscriptions": [topic], "consume_from_where": "first_offset"}
    async with member(rocketmq_pair.nameserver, seen, group=ours, poll_seconds=1.0, **options) as m:
        with start_consumer(PeerOptions(rocketmq_pair.nameserver, topic, theirs), java):

            def handled(times: int) -> bool:
                return len(seen.keys) >= times and len(finished(theirs)) >= times

            await asyncio.to_thread(send, rocketmq_pair, topic, tmp_path, 0, 100)
            await eventually(lambda: handled(100), "all are handled before the move")
            await asyncio.to_thread(remap, rocketmq_pair, topic, "-b", "broker-a")
            await asyncio.to_thread(send, rocketmq_pair, topic, tmp_path, 100, 200)
            await eventually(lambda: handled(200), "and after it", 60)
            await eventually(
                lambda: all(q.committed == q.max for q in m.consumer.snapshot().queues), "all is committed"
            )
            # in its first seconds a member queries the stored offset, and would see a reset that no pull reports
            over = time.monotonic() + OFFSET_WATCH_SECONDS + 2
            await eventually(lambda: time.monotonic() > over, "the first seconds are over", 40)
            for group in (ours, java):
                await asyncio.to_thread(rocketmq_pair.admin, "resetOffsetByTime", "-g", group, "-t", topic, "-s", begin)
            # the two queues that stayed have 50 messages each, and the moved queues 25 each since the move
            await eventually(lambda: handled(200 + 150), "both are handed what the reset goes back to", 40)
            await eventually(
                lambda: all(q.committed == q.max for q in m.consumer.snapshot().queues), "all is committed"
            )
            assert m.topic().falls == {"operator": 4, "corrected": 0, "take_over": 0}
    assert Counter(seen.keys) == Counter(finished(theirs))
    assert sorted(Counter(seen.keys).values()) == [1] * 50 + [2] * 150
