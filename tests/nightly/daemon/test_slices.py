"""Thousands of queues are read, rendered and sent between processes in slices, so that other tasks can run meanwhile.

The tests count the reads between two turns of the event loop. They measure no time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import pytest

from rmqd.config.model.root_model import MetricsConfig
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.daemon.group_history import HistoryRecorder
from rmqd.daemon.groups.group_engine import HostSnapshot, WorkerReport
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.daemon.http.daemon_status import status_document, status_json
from rmqd.daemon.metrics.exposition import render
from rmqd.daemon.page.page_view import StatusPage
from rmqd.runtime.clock import SystemClock
from tests.config.configs import config
from tests.daemon.fakes import ABOUT, FakeConsumer, FakeEngine, queue_snapshot

__all__ = ["view"]


class CountedFields(dict[str, Any]):
    """A queue of the status document that counts reads of one value."""

    def __getitem__(self, key: str) -> Any:
        Reads.total += key == "committed"
        return super().__getitem__(key)


async def test_page(view: HostSnapshot) -> None:
    status = await status_document(view, HistoryRecorder(SystemClock(), None), ABOUT)  # type: ignore[arg-type]
    [group] = status["groups"]
    group["queues"] = [CountedFields(queue) for queue in group["queues"]]
    page = StatusPage()
    shown: dict[str, Any] = {"config": {"groups": {}}, "given": {"groups": {}}}
    before = Reads.total
    most, text = await Reads.most(page.render("live.html", status, shown, ["mailer"]))
    assert (most <= MOST, Reads.total - before) == (True, QUEUES)
    assert text.count(b'<tr data-key="broker-a-') == QUEUES


async def test_report_of_a_worker(view: HostSnapshot) -> None:
    [process] = view.processes
    plain = tuple(queue_snapshot(number) for number in range(QUEUES))
    process = replace(process, groups=(replace(process.groups[0], queues=plain),))
    packing, report = await turns_of(WorkerReport.of(process))
    unpacking, unpacked = await turns_of(report.unpacked())
    assert min(packing, unpacking) >= QUEUES // MOST
    assert report.process.groups[0].queues == ()
    assert unpacked == process


T = TypeVar("T")


QUEUES = 1000


MOST = 400


class Reads:
    """Counts reads of one value of queues, and the most reads between two turns of the event loop."""

    total: ClassVar[int] = 0

    @classmethod
    async def most(cls, work: Awaitable[T]) -> tuple[int, T]:
        """Await the work. Returns the most reads in one turn, and the result."""
        counts = [cls.total]

        async def count() -> None:
            while True:
                await asyncio.sleep(0)
                counts.append(cls.total)

        counting = asyncio.create_task(count())
        result = await work
        counting.cancel()
        counts.append(cls.total)
        return max(after - before for before, after in itertools.pairwise(counts)), result


class CountedQueue(QueueSnapshot):
    """A queue that counts reads of a value. Every rendering reads the value once."""

    @property
    def cached(self) -> int:
        Reads.total += 1
        return 7

    @cached.setter
    def cached(self, value: int) -> None:
        pass


def counted(number: int) -> QueueSnapshot:
    one = queue_snapshot(number)
    values = {name: getattr(one, name) for name in QueueSnapshot.__dataclass_fields__}
    return CountedQueue(**values)


@pytest.fixture
async def view(monkeypatch: pytest.MonkeyPatch) -> HostSnapshot:
    """The snapshot of a daemon with 1,000 queues, taken in slices."""

    def queues(_: FakeConsumer) -> Iterator[QueueSnapshot]:
        for number in range(QUEUES):
            Reads.total += 1
            yield counted(number)

    monkeypatch.setattr(FakeConsumer, "queue_snapshots", queues)
    clock = SystemClock()
    groups = LocalGroups(config("mailer"), FakeEngine(), clock, LoopMonitor(clock))
    before = Reads.total
    most, view = await Reads.most(groups.view())
    assert (most <= MOST, Reads.total - before) == (True, QUEUES)
    return view


@pytest.mark.parametrize("per_queue", ["always", "never"])
async def test_metrics(view: HostSnapshot, per_queue: Any) -> None:
    before = Reads.total
    most, (body, _) = await Reads.most(render(view, ABOUT, "", MetricsConfig(per_queue=per_queue)))
    assert (most <= MOST, Reads.total - before) == (True, QUEUES)
    assert body.count(b"\nrmqd_cached_messages{") == (QUEUES if per_queue == "always" else 1)


async def test_status_and_its_json(view: HostSnapshot) -> None:
    recorder = HistoryRecorder(SystemClock(), None)  # type: ignore[arg-type]
    before = Reads.total
    most, document = await Reads.most(status_document(view, recorder, ABOUT))
    assert (most <= MOST, Reads.total - before) == (True, QUEUES)
    turns, text = await turns_of(status_json(document))
    assert turns >= QUEUES // MOST
    assert text.count(b'"broker":"broker-a"') == QUEUES


async def turns_of(work: Awaitable[T]) -> tuple[int, T]:
    """Await the work. Returns the number of turns that other tasks had meanwhile, and the result."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    result = await work
    counting.cancel()
    return turns, result
