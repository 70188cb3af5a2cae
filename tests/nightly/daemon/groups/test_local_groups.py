"""The groups of a process: started together, reloaded apart, drained in parallel.

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


async def test_new_keys_start_groups_on_spark_anew() -> None:
    """They have clients of their own, in other processes."""
    changes = {"mailer": {"engine": "spark"}}
    engine = FakeEngine()
    async with running(config("mailer", "audit", changes=changes), engine) as (groups, _):
        report = await groups.apply(config("mailer", "audit", changes=changes, **SECURED))
        assert (report.restarted, report.unchanged) == (("mailer",), ("audit",))


async def test_certificates_that_were_replaced_are_taken_over(tmp_path: Path) -> None:
    """The configuration is the same, and what stands in its files is not."""
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


async def test_keys_of_a_configuration_that_is_refused_are_not_kept() -> None:
    engine = FakeEngine(refused_plugins={"missing"})
    old = config("mailer")
    async with running(old, engine) as (groups, _):
        changes = {"audit": {"handler": {"plugin": "missing"}}}
        with pytest.raises(ConfigError):
            await groups.apply(config("mailer", "audit", changes=changes, **SECURED))
        assert engine.clients[0].secured[-1] == old.client_options()


@pytest.mark.parametrize("after", [{"ratio": 0.5, "open_for": "1m"}, {}])
async def test_a_circuit_breaker_that_is_there_changes_while_the_group_runs(after: dict[str, object]) -> None:
    engine, before = FakeEngine(), {"circuit_breaker": {"consecutive": 3}}
    async with running(config("mailer", changes={"mailer": before}), engine) as (groups, _):
        report = await groups.apply(config("mailer", changes={"mailer": {"circuit_breaker": after}}))
        assert (report.updated, report.restarted) == (("mailer",), ())
        (options,) = engine.last("mailer").changes
        assert (options.circuit is None) == (not after)


async def test_a_group_that_has_failed_starts_with_the_new_values_at_once() -> None:
    """Nobody waits for the rest after the failure to be over: the change may be the cure."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        engine.last("mailer").fail(OSError("refused"))
        await eventually(lambda: by_name(groups)["mailer"].state == "failed", "the failure")
        await groups.apply(config("mailer", changes={"mailer": {"subscriptions": {"orders": "paid"}}}))
        assert len(engine.consumers["mailer"]) == 2
        await eventually(lambda: by_name(groups)["mailer"].state == "running", "the successor")
        assert engine.options["mailer"].subscriptions["orders"].expression == "paid"


async def test_a_refused_filter_leaves_no_connection_of_a_new_client() -> None:
    engine = FakeEngine(refused_filters={"bad"})
    async with running(config("mailer"), engine) as (groups, _):
        bad = {"mailer": {"subscriptions": {"orders": {"sql": "bad"}}}}
        with pytest.raises(ConfigError):
            await groups.apply(config("mailer", nameserver="127.0.0.1:2", changes=bad))
        assert [client.closed for client in engine.clients] == [False, True]
        assert engine.clients[0].running


async def test_another_client_restarts_every_group() -> None:
    """Connections are shared, so nothing can stay."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        report = await groups.apply(config("mailer", nameserver="127.0.0.1:2"))
        assert report.restarted == ("mailer",)
        await groups.started(5)
        assert [client.running for client in engine.clients] == [False, True]
        assert groups.snapshot().client.corrupt_frames == 2  # the old one's counters stay


async def test_what_only_the_engine_finds_wrong_is_a_problem_of_its_group() -> None:
    """Such as a name that RocketMQ refuses."""
    engine = FakeEngine()

    def refuse(options: ConsumerOptions, handler: LoadedHandler, client: ClientInstance) -> Consumer:
        raise InvalidNameError("the group's name is too long")

    engine.build_consumer = refuse  # type: ignore[method-assign]
    clock = SystemClock()
    with pytest.raises(ConfigError, match=r"groups\.mailer: the group's name is too long"):
        LocalGroups(config("mailer"), engine, clock, LoopMonitor(clock))


def test_a_small_limit_is_never_divided_down_to_no_limit() -> None:
    """0 would mean as fast as possible."""
    options = options_of_group(
        config("mailer", changes={"mailer": {"pull_rate_limit": 1}}).groups["mailer"], "mailer", ""
    )
    assert [WorkerShare(worker, 3).of_group(options).pull_rate_limit for worker in (1, 2, 3)] == [1, 1, 1]


async def test_a_group_on_spark_is_built_as_such_and_any_change_starts_it_anew() -> None:
    """Also one that a local group takes over while it runs."""
    engine = FakeEngine()
    spark: dict[str, dict[str, Any]] = {"mailer": {"engine": "spark"}}
    async with running(config("mailer", "audit", changes=spark), engine) as (groups, _):
        assert engine.on_spark == ["mailer"]
        spark["mailer"]["pull_batch_size"] = 16
        report = await groups.apply(config("mailer", "audit", changes=spark))
        assert report.restarted == ("mailer",)
        assert [consumer.ended for consumer in engine.consumers["mailer"]] == [True, False]


async def test_a_group_that_moves_to_spark_drains_first_and_leaves_its_figures_behind() -> None:
    """They are of another engine's series. The pause of the whole group moves along, that of a queue cannot."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        engine.last("mailer").received = 5
        await groups.pause("mailer", PauseScope("orders", "broker-a", 1))
        await groups.pause("mailer")
        await groups.apply(config("mailer", changes={"mailer": {"engine": "spark"}}))
        assert engine.on_spark == ["mailer"]
        assert engine.consumers["mailer"][0].ended
        assert by_name(groups)["mailer"].pauses == (PauseScope(),)


async def test_no_single_queue_of_a_group_on_spark_can_be_paused() -> None:
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


async def test_a_group_on_spark_runs_in_the_first_worker_alone() -> None:
    spark = {"mailer": {"engine": "spark"}}
    for worker, names in ((1, ("mailer", "audit")), (2, ("audit",))):
        async with running(config("mailer", "audit", changes=spark), FakeEngine(), WorkerShare(worker, 2)) as (
            groups,
            _,
        ):
            assert groups.names == names


async def test_workers_divide_limits_and_have_names_of_their_own() -> None:
    """The parts add up to the whole, and a broadcasting group runs once."""
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
async def test_what_parts_are_built_with_takes_a_restart(change: dict[str, object]) -> None:
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        report = await groups.apply(config("mailer", changes={"mailer": change}))
        assert (report.updated, report.restarted) == ((), ("mailer",))
        assert len(engine.consumers["mailer"]) == 2
        assert engine.consumers["mailer"][0].changes == []


async def test_a_filter_that_a_broker_refuses_changes_nothing() -> None:
    """Neither the group with the filter nor the others; only changed filters are asked about."""
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
        assert not engine.last("slow").running.is_set()  # built, and thrown away
        assert not engine.consumers["slow"][0].ended
        report = await groups.apply(config("mailer", "audit", "slow"))
        assert report.unchanged == ("mailer", "audit", "slow")


async def test_a_stop_during_a_reload_starts_nothing_more() -> None:
    """It waits for the drain that the reload began, while the other groups drain beside it."""
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


async def test_a_client_that_fails_is_raised() -> None:
    """No restart of a group could cure that; the process ends and is started anew."""
    engine = FakeEngine()
    clock = SystemClock()
    groups = LocalGroups(config("mailer"), engine, clock, LoopMonitor(clock))

    async def broken() -> None:
        raise OSError("no file descriptors")

    engine.clients[0].run = broken  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as failure:
        await groups.run()
    assert failure.value.subgroup(OSError)
