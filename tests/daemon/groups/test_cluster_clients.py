"""Reloads with the clients of several clusters: only clients with changed settings are notified."""

from __future__ import annotations

from typing import Any

from rmqd.config.model.root_model import RootConfig
from tests.config.configs import config
from tests.daemon.fakes import FakeClient, FakeEngine
from tests.daemon.groups.test_local_groups import by_name, running

FAR = {"far": {"cluster": "tokyo"}}


def two(*names: str, far: dict[str, dict[str, Any]] = FAR, **tokyo: Any) -> RootConfig:
    """Groups with `far` on the cluster tokyo; `tokyo` are the settings of tokyo's client."""
    clusters = {"tokyo": {"nameserver": "127.0.0.1:2", "client": {"instance_name": "there", **tokyo}}}
    return config(*(names or ("near", "far")), changes=far, clusters=clusters, client={"instance_name": "here"})


def client(engine: FakeEngine, name: str) -> FakeClient:
    """The newest client of that instance name."""
    return [one for one in engine.clients if one.options.instance_name == name][-1]


async def test_each_cluster_with_a_group_has_a_client() -> None:
    engine = FakeEngine()
    async with running(two(), engine) as (groups, task):
        assert [one.options.nameservers for one in engine.clients] == [("127.0.0.1:1",), ("127.0.0.1:2",)]
        assert all(one.running for one in engine.clients)
        assert {name: group.cluster for name, group in by_name(groups).items()} == {"near": "default", "far": "tokyo"}
        assert groups.snapshot().client.client_id == "here"
        groups.stop()
        await task
        assert not any(one.running for one in engine.clients)


async def test_new_keys_of_a_cluster_are_passed_only_to_its_client() -> None:
    engine = FakeEngine()
    async with running(two(), engine) as (groups, _):
        new = two(access_key="a", secret_key="b")
        changes = await groups.apply(new)
        assert changes.unchanged == ("near", "far")
        assert client(engine, "there").secured == [new.clusters["tokyo"].client_options()]
        assert client(engine, "here").secured == []
