"""The driver's reports about an unavailable store of `deduplicate`: executors cannot report before it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import pytest
from structlog.testing import capture_logs

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.pauses import Pauses
from rmqd.runtime.clock import SystemClock
from tests.servers.postgresql import PostgresqlServer
from tests.servers.redis import RedisServer
from tests.spark.needed import need
from tests.waiting import eventually

need("pyspark")

from rmqd.spark.engine import spark_parts as claim_store_watch  # noqa: E402
from rmqd.spark.engine.group_run import GroupRun  # noqa: E402
from rmqd.spark.engine.spark_figures import DriverMetrics  # noqa: E402
from rmqd.spark.engine.spark_parts import (  # noqa: E402
    DeduplicationStorePoller,
    GroupRunParts,
)
from rmqd.spark.session.group_spec import GroupSpec  # noqa: E402
from tests.spark.fake_spark import FakeParts  # noqa: E402

pytestmark = pytest.mark.process

UNREACHED = "spark.claim_store_unreached"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_store_watch, "DEDUPLICATION_STORE_POLL_SECONDS", 0.02)


class Parts(FakeParts):
    """Fake parts, with the real poller of the store."""

    watch_of_store: DeduplicationStorePoller | None = None

    def __init__(self, order: GroupSpec) -> None:
        super().__init__()
        self._parts = GroupRunParts(order, SystemClock())

    def deduplication_store_poller(self, figures: DriverMetrics) -> DeduplicationStorePoller | None:
        self.watch_of_store = self._parts.deduplication_store_poller(figures)
        return self.watch_of_store


@dataclass
class Store:
    """A server, and a group that deduplicates with it."""

    server: RedisServer | PostgresqlServer
    order: GroupSpec

    @staticmethod
    def of(server: RedisServer | PostgresqlServer, name: str, url: str) -> Store:
        settings = {
            "engine": "spark",
            "subscriptions": {"orders": "*"},
            "handler": {"plugin": "log"},
            "deduplicate": {"store": name, "url": url},
        }
        config = RootConfig.model_validate({"nameserver": "127.0.0.1:1", "groups": {"mailer": settings}})
        return Store(server, GroupSpec("mailer", config))


@pytest.fixture(params=["redis", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store of either kind. At the end its server runs again."""
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        found = Store.of(redis, "redis", redis.url)
    else:
        url: str = request.getfixturevalue("database")
        found = Store.of(request.getfixturevalue("postgresql"), "postgresql", url)
    yield found
    if not found.server.is_ready():
        found.server.start()


def causes(problems: Iterable[Problem]) -> list[str]:
    return [problem.cause for problem in problems]


async def test_an_unreachable_store_is_a_problem_until_it_is_back(store: Store) -> None:
    parts = Parts(store.order)
    run = GroupRun(store.order, cast("GroupRunParts", parts), SystemClock())

    def problems() -> list[str]:
        return causes(run.snapshot().problems)

    with capture_logs() as logs:
        task = asyncio.create_task(run.run())
        try:
            await eventually(lambda: parts.watch_of_store and parts.watch_of_store.has_answered, "the store answers")
            assert not problems()
            store.server.kill()
            await eventually(lambda: problems() == ["claim_store_away"], "the store is reported as unreachable")
            [problem] = run.snapshot().problems
            assert "the driver cannot reach the store of deduplicate" in problem.evidence
            store.server.start()
            await eventually(lambda: not problems(), "the problem has ended")
        finally:
            run.force_stop()
            with suppress(asyncio.CancelledError):
                await task
    told = [entry["event"] for entry in logs if entry.get("cause") == "claim_store_away"]
    assert told == ["group.problem", "group.problem_ended"]
    assert UNREACHED not in [entry["event"] for entry in logs]


async def test_a_store_that_the_driver_never_reached_is_not_a_problem(store: Store) -> None:
    """Executors may reach it. The log reports it once."""
    figures = DriverMetrics(store.order.options, SystemClock())
    watch = GroupRunParts(store.order, SystemClock()).deduplication_store_poller(figures)
    assert watch is not None

    def problems() -> list[str]:
        return causes(figures.snapshot("running", None, "", Pauses(), handling=True).problems)

    store.server.kill()
    with capture_logs() as logs:
        for _ in range(2):
            await watch.poll()
    assert not problems()
    assert [entry["event"] for entry in logs].count(UNREACHED) == 1
    store.server.start()
    await watch.poll()
    store.server.kill()
    await watch.poll()
    assert problems() == ["claim_store_away"]
    await watch.close()


def test_a_group_without_deduplicate_has_no_store() -> None:
    group = {"engine": "spark", "subscriptions": {"orders": "*"}, "handler": {"plugin": "log"}}
    config = RootConfig.model_validate({"nameserver": "127.0.0.1:1", "groups": {"mailer": group}})
    order = GroupSpec("mailer", config)
    parts = GroupRunParts(order, SystemClock())
    assert parts.deduplication_store_poller(DriverMetrics(order.options, SystemClock())) is None
