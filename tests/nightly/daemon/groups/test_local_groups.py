"""The groups of a process: started together, reloaded separately, drained in parallel.

The core of these tests is in tests/daemon/groups/test_local_groups.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.instance import ClientInstance
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.pauses import PauseScope
from rmqd.consumer.services import Consumer
from rmqd.daemon.groups.group_engine import WholeGroupOnlyError
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor, WorkerShare
from rmqd.errors import ConfigError, InvalidNameError
from rmqd.handler_api.batch import LoadedHandler
from rmqd.plugins.model_options import options_of_group
from rmqd.runtime.clock import SystemClock
from tests.certificates import CA, OTHER_CA
from tests.config.configs import config
from tests.daemon.fakes import FakeEngine
from tests.daemon.groups.test_local_groups import SECURED, by_name, running
from tests.waiting import eventually


async def test_new_keys_restart_groups_on_spark() -> None:
    """Their clients run in other processes."""
    changes = {"mailer": {"engine": "spark"}}
    engine = FakeEngine()
    async with running(config("mailer", "audit", changes=changes), engine) as (groups, _):
        report = await groups.apply(config("mailer", "audit", changes=changes, **SECURED))
        assert (report.restarted, report.unchanged) == (("mailer",), ("audit",))


async def test_a_reload_applies_replaced_certificate_files(tmp_path: Path) -> None:
    """The configuration is unchanged, but the content of its file is not."""
    engine = FakeEngine()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(CA.read_bytes())
    settings = config("mailer", client={"tls": {"enabled": True, "ca_file": str(ca)}})
    async with running(settings, engine) as (groups, _):
        await groups.apply(settings)
        assert engine.clients[0].secured == []
        ca.write_bytes(OTHER_CA.read_bytes())
        await groups.apply(settings)
        assert engine.clients[0].secured == [settings.client_options()]


async def test_a_refused_reload_restores_the_keys_of_the_client() -> None:
    engine = FakeEngine(refused_plugins={"missing"})
    old = config("mailer")
    async with running(old, engine) as (groups, _):
        changes = {"audit": {"handler": {"plugin": "missing"}}}
        with pytest.raises(ConfigError):
            await groups.apply(config("mailer", "audit", changes=changes, **SECURED))
        assert engine.clients[0].secured[-1] == old.client_options()


@pytest.mark.parametrize("after", [{"ratio": 0.5, "open_for": "1m"}, {}])
async def test_a_circuit_breaker_is_changed_or_removed_while_the_group_runs(after: dict[str, object]) -> None:
    engine, before = FakeEngine(), {"circuit_breaker": {"consecutive": 3}}
    async with running(config("mailer", changes={"mailer": before}), engine) as (groups, _):
        report = await groups.apply(config("mailer", changes={"mailer": {"circuit_breaker": after}}))
        assert (report.updated, report.restarted) == (("mailer",), ())
        (options,) = engine.last("mailer").changes
        assert (options.circuit is None) == (not after)


async def test_a_reload_restarts_a_failed_group_at_once() -> None:
    """The backoff is skipped, because the change may fix the failure."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        engine.last("mailer").fail(OSError("refused"))
        await eventually(lambda: by_name(groups)["mailer"].state == "failed", "the failure")
        await groups.apply(config("mailer", changes={"mailer": {"subscriptions": {"orders": "paid"}}}))
        assert len(engine.consumers["mailer"]) == 2
        await eventually(lambda: by_name(groups)["mailer"].state == "running", "the successor")
        assert engine.options["mailer"].subscriptions["orders"].expression == "paid"


async def test_a_refused_filter_closes_the_new_client() -> None:
    engine = FakeEngine(refused_filters={"bad"})
    async with running(config("mailer"), engine) as (groups, _):
        bad = {"mailer": {"subscriptions": {"orders": {"sql": "bad"}}}}
        with pytest.raises(ConfigError):
            await groups.apply(config("mailer", nameserver="127.0.0.1:2", changes=bad))
        assert [client.closed for client in engine.clients] == [False, True]
        assert engine.clients[0].running


async def test_another_client_restarts_every_group() -> None:
    """All groups share the client's connections."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        report = await groups.apply(config("mailer", nameserver="127.0.0.1:2"))
        assert report.restarted == ("mailer",)
        await groups.started(5)
        assert [client.running for client in engine.clients] == [False, True]
        assert groups.snapshot().client.corrupt_frames == 2  # the counters of the old client are kept


async def test_an_error_of_the_engine_is_reported_as_a_problem_of_its_group() -> None:
    """For example, RocketMQ refuses the group's name."""
    engine = FakeEngine()

    def refuse(options: ConsumerOptions, handler: LoadedHandler, client: ClientInstance) -> Consumer:
        raise InvalidNameError("the group's name is too long")

    engine.build_consumer = refuse  # type: ignore[method-assign]
    clock = SystemClock()
    with pytest.raises(ConfigError, match=r"groups\.mailer: the group's name is too long"):
        LocalGroups(config("mailer"), engine, clock, LoopMonitor(clock))


@pytest.mark.parametrize(
    ("limit", "changes", "shares"),
    [(1, {}, [1, 1, 1]), (40, {}, [14, 13, 13]), (40, {"message_model": "broadcasting"}, [40, 40, 40])],
)
def test_the_rate_limit_is_divided_among_the_workers_of_a_group(
    limit: int, changes: dict[str, str], shares: list[int]
) -> None:
    """A share is never 0, which means no limit. A broadcasting group runs in one worker."""
    group = config("mailer", changes={"mailer": {"pull_rate_limit": limit, **changes}}).groups["mailer"]
    options = options_of_group(group, "mailer", "/tmp/rmqd")
    found = [WorkerShare(worker, 3).of_group(group, options).pull_rate_limit for worker in (1, 2, 3)]
    assert found == shares


async def test_any_change_restarts_a_group_on_spark() -> None:
    """This includes options that a running local group applies without a restart."""
    engine = FakeEngine()
    spark: dict[str, dict[str, Any]] = {"mailer": {"engine": "spark"}}
    async with running(config("mailer", "audit", changes=spark), engine) as (groups, _):
        assert engine.on_spark == ["mailer"]
        spark["mailer"]["pull_batch_size"] = 16
        report = await groups.apply(config("mailer", "audit", changes=spark))
        assert report.restarted == ("mailer",)
        assert [consumer.ended for consumer in engine.consumers["mailer"]] == [True, False]


async def test_a_group_that_moves_to_spark_drains_first_and_keeps_only_its_group_pause() -> None:
    """Spark cannot pause a single queue."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        engine.last("mailer").received = 5
        await groups.pause("mailer", PauseScope("orders", "broker-a", 1))
        await groups.pause("mailer")
        await groups.apply(config("mailer", changes={"mailer": {"engine": "spark"}}))
        assert engine.on_spark == ["mailer"]
        assert engine.consumers["mailer"][0].ended
        assert by_name(groups)["mailer"].pauses == (PauseScope(),)


async def test_single_queues_of_a_group_on_spark_cannot_be_paused() -> None:
    engine = FakeEngine()
    async with running(config("mailer", changes={"mailer": {"engine": "spark"}}), engine) as (groups, _):
        with pytest.raises(WholeGroupOnlyError, match="topic orders, queue 1 alone cannot be paused"):
            await groups.pause("mailer", PauseScope("orders", None, 1))
        with pytest.raises(WholeGroupOnlyError):
            await groups.resume("mailer", PauseScope("orders"))
        await groups.pause("mailer")
        assert by_name(groups)["mailer"].paused
        await groups.resume("mailer")
        assert not by_name(groups)["mailer"].paused


async def test_a_group_on_spark_runs_only_in_the_first_worker() -> None:
    spark = {"mailer": {"engine": "spark"}}
    for worker, names in ((1, ("mailer", "audit")), (2, ("audit",))):
        async with running(config("mailer", "audit", changes=spark), FakeEngine(), WorkerShare(worker, 2)) as (
            groups,
            _,
        ):
            assert groups.names == names


async def test_workers_divide_limits_and_have_unique_instance_names() -> None:
    """The parts add up to the configured limit. A broadcasting group runs only in the first worker."""
    limits, names = [], []
    for worker in (1, 2, 3):
        engine = FakeEngine()
        settings = config(
            "mailer",
            "all",
            changes={"mailer": {"pull_rate_limit": 10}, "all": {"message_model": "broadcasting"}},
            client={"instance_name": "shop"},
        )
        async with running(settings, engine, WorkerShare(worker, 3)) as (groups, _):
            limits.append(engine.options["mailer"].pull_rate_limit)
            names.append(engine.clients[0].options.instance_name)
            assert groups.names == (("mailer", "all") if worker == 1 else ("mailer",))
    assert limits == [4, 3, 3]
    assert names == ["shop-1", "shop-2", "shop-3"]


@pytest.mark.parametrize(
    "change",
    [
        {"subscriptions": {"orders": "*", "invoices": "*"}},
        {"handler": {"plugin": "log", "processes": 3}},
        {"handler": {"plugin": "log", "options": {"a": 1}}},
        {"consume_message_batch_max_size": 7, "pull_rate_limit": 1},
        {"circuit_breaker": {"consecutive": 3}},
    ],
)
async def test_options_that_cannot_change_live_restart_the_group(change: dict[str, object]) -> None:
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        report = await groups.apply(config("mailer", changes={"mailer": change}))
        assert (report.updated, report.restarted) == ((), ("mailer",))
        assert len(engine.consumers["mailer"]) == 2
        assert engine.consumers["mailer"][0].changes == []


async def test_a_reload_with_a_refused_filter_changes_nothing() -> None:
    """No group is changed. Only changed filters and new consumers are checked with the broker."""
    engine = FakeEngine(refused_filters={"bad"})
    async with running(config("mailer", "audit", "slow"), engine) as (groups, _):
        changes: dict[str, dict[str, object]] = {
            "mailer": {"pull_rate_limit": 10},
            "audit": {"subscriptions": {"orders": {"sql": "bad"}}},
            "slow": {"consume_message_batch_max_size": 10},
        }
        with pytest.raises(ConfigError, match=r"groups\.audit\.subscriptions\.orders: broker-a refuses bad"):
            await groups.apply(config("mailer", "audit", "slow", changes=changes))
        assert sorted(engine.checked) == ["audit", "slow"]
        assert engine.last("mailer").changes == engine.last("audit").changes == []
        assert not engine.last("slow").running.is_set()  # built and discarded
        assert not engine.consumers["slow"][0].ended
        report = await groups.apply(config("mailer", "audit", "slow"))
        assert report.unchanged == ("mailer", "audit", "slow")


async def test_a_stop_during_a_reload_starts_nothing_more() -> None:
    """The stop waits for the drain that the reload began. The other groups drain in parallel."""
    engine = FakeEngine()
    async with running(config("mailer", "audit"), engine) as (groups, task):
        engine.last("mailer").drained.clear()
        changed = config("mailer", "audit", "new", changes={"mailer": {"consume_message_batch_max_size": 8}})
        reload = asyncio.create_task(groups.apply(changed))
        await eventually(lambda: len(engine.consumers["mailer"]) == 2, "the reload has begun")
        groups.stop()
        await eventually(lambda: engine.last("audit").ended, "the unchanged group drains at once")
        engine.consumers["mailer"][0].drained.set()
        await asyncio.gather(reload, task)
        assert not engine.last("mailer").running.is_set()
        assert not engine.last("new").running.is_set()


async def test_a_failure_of_a_client_ends_the_run() -> None:
    """A restart of a group cannot fix it, so the process must end and be restarted."""
    engine = FakeEngine()
    clock = SystemClock()
    groups = LocalGroups(config("mailer"), engine, clock, LoopMonitor(clock))

    async def broken() -> None:
        raise OSError("no file descriptors")

    engine.clients[0].run = broken  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as failure:
        await groups.run()
    assert failure.value.subgroup(OSError)
