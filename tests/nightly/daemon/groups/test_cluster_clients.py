"""Reloads with the clients of several clusters: only clients with changed settings are notified.

The core of these tests is in tests/daemon/groups/test_cluster_clients.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.consumer.pauses import PauseScope
from rmqd.errors import ConfigError
from tests.config.configs import config
from tests.daemon.fakes import FakeEngine
from tests.daemon.groups.test_cluster_clients import FAR, client, two
from tests.daemon.groups.test_local_groups import by_name, running
from tests.waiting import eventually


async def test_a_cluster_without_groups_has_no_client() -> None:
    engine = FakeEngine()
    async with running(two("near"), engine) as (groups, _):
        assert [one.options.instance_name for one in engine.clients] == ["here"]
        await groups.apply(two("near", "far"))
        await eventually(lambda: client(engine, "there").running, "the new client runs")
        await groups.apply(two("near"))
        assert not client(engine, "there").running
        assert client(engine, "here").running
        assert len(engine.clients) == 2


async def test_a_refused_reload_restores_the_keys_of_a_client() -> None:
    engine = FakeEngine(refused_plugins={"missing"})
    old = two()
    async with running(old, engine) as (groups, _):
        wrong: dict[str, dict[str, Any]] = {**FAR, "audit": {"handler": {"plugin": "missing"}}}
        with pytest.raises(ConfigError):
            await groups.apply(two("near", "far", "audit", far=wrong, access_key="a", secret_key="b"))
        assert client(engine, "there").secured[-1] == old.clusters["tokyo"].client_options()
        assert client(engine, "here").secured == []


async def test_a_refused_reload_closes_the_client_of_a_new_cluster() -> None:
    engine = FakeEngine(refused_plugins={"missing"})
    async with running(two("near"), engine) as (groups, _):
        with pytest.raises(ConfigError):
            await groups.apply(two("near", "far", far={"far": {"cluster": "tokyo", "handler": {"plugin": "missing"}}}))
        assert client(engine, "there").closed
        assert client(engine, "here").running


async def test_the_engine_gets_pauses_with_the_namespace() -> None:
    """The status shows the operator's names. A restart of the group keeps the pause."""
    engine = FakeEngine()
    settings = config("mailer", client={"namespace": "shop"})
    async with running(settings, engine) as (groups, _):
        await groups.pause("mailer", PauseScope(topic="orders"))
        assert engine.last("shop%mailer").pauses.scopes == (PauseScope(topic="shop%orders"),)
        shown = by_name(groups)["mailer"]
        assert shown.pauses == (PauseScope(topic="orders"),)
        changed = config("mailer", client={"namespace": "shop"}, changes={"mailer": {"queue_handover_timeout": "9s"}})
        assert (await groups.apply(changed)).restarted == ("mailer",)
        assert engine.last("shop%mailer").pauses.scopes == (PauseScope(topic="shop%orders"),)


async def test_a_refused_filter_is_reported_with_the_configured_topic_name() -> None:
    """The broker's topic name has the namespace."""
    engine = FakeEngine(refused_filters={"price >"})
    async with running(config("mailer", client={"namespace": "shop"}), engine) as (groups, _):
        wrong = config(
            "mailer",
            client={"namespace": "shop"},
            changes={"mailer": {"subscriptions": {"orders": {"sql": "price >"}}}},
        )
        with pytest.raises(ConfigError) as refused:
            await groups.apply(wrong)
    (problem,) = refused.value.problems
    assert "groups.mailer.subscriptions.orders: broker-a refuses price >" in str(problem)


async def test_a_changed_unit_name_restarts_the_groups_of_that_cluster() -> None:
    engine = FakeEngine()
    async with running(two(), engine) as (groups, _):
        before = client(engine, "there")
        changes = await groups.apply(two(unit_name="u"))
        assert (changes.unchanged, changes.restarted) == (("near",), ("far",))
        assert not before.running
        await eventually(lambda: client(engine, "there").running, "another client runs")
        assert client(engine, "there") is not before
        assert len(engine.consumers["near"]) == 1


async def test_a_group_moves_to_another_cluster() -> None:
    engine = FakeEngine()
    async with running(two("near", "far"), engine) as (groups, _):
        changes = await groups.apply(two("near", "far", far={}))
        assert (changes.unchanged, changes.restarted) == (("near",), ("far",))
        assert by_name(groups)["far"].cluster == "default"
        assert not client(engine, "there").running
