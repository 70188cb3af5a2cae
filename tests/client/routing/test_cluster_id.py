"""ClusterId: a cluster keeps its id when addresses change, and two clusters with the same names have different ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.cluster_id import ClusterId
from rmqd.client.routing.name_server_client import NameServers
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.route_data import BrokerData, ClusterInfo
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock


class KeyServer:
    """A name server with a key-value table, of a DefaultCluster with a broker-a."""

    def __init__(self, broker_address: str) -> None:
        self.peer = Peer()
        self.table: dict[str, str] = {}
        data = BrokerData("DefaultCluster", "broker-a", {0: broker_address})
        info = ClusterInfo({"broker-a": data}, {"DefaultCluster": ("broker-a",)})
        self.peer.on(RequestCode.GET_BROKER_CLUSTER_INFO, Reply(body=info.to_json()))
        self.peer.on(RequestCode.GET_KV_CONFIG, self._get)
        self.peer.on(RequestCode.PUT_KV_CONFIG, self._put)

    def _get(self, request: RemotingCommand) -> Reply:
        value = self.table.get(request.ext_fields["key"])
        return Reply(ResponseCode.QUERY_NOT_FOUND) if value is None else Reply(ext_fields={"value": value})

    def _put(self, request: RemotingCommand) -> Reply:
        self.table[request.ext_fields["key"]] = request.ext_fields["value"]
        return Reply()


@pytest.fixture
async def servers() -> AsyncIterator[list[KeyServer]]:
    servers = [KeyServer("10.0.0.1:10911"), KeyServer("10.0.0.1:10911"), KeyServer("10.9.9.9:10911")]
    for one in servers:
        await one.peer.listen()
    yield servers
    for one in servers:
        await one.peer.down()


async def learned(*servers: KeyServer, state: Path | str = "", members: int = 1, may_write: bool = True) -> str:
    """The cluster id that all new members learn."""
    clock = ManualClock()
    remoting = RemotingClient(clock=clock)
    addresses = [one.peer.address for one in servers]
    async with clock.flowing():
        asked = (ClusterId(remoting, NameServers(remoting, addresses), str(state)) for _ in range(members))
        try:
            ids = await asyncio.gather(*(one.learn(may_write=may_write) for one in asked))
        finally:
            await remoting.close()
    assert len(set(ids)) == 1
    return ids[0]


async def test_members_that_start_together_agree_and_another_cluster_differs(servers: list[KeyServer]) -> None:
    """Each name server stores the id."""
    ours, second, other = servers
    found = await learned(ours, second, members=5)
    assert ours.table == second.table == {"cluster_id": found}
    assert await learned(second) == found != await learned(other)


async def test_a_lost_id_is_restored_only_for_the_same_brokers(servers: list[KeyServer], tmp_path: Path) -> None:
    """The source is another name server or the state_dir; other brokers with the same names get a new id."""
    ours, second, other = servers
    found = await learned(ours, second, state=tmp_path)
    ours.table.clear()
    assert await learned(ours, second) == found == ours.table["cluster_id"]
    ours.table.clear()
    assert await learned(ours, state=tmp_path, may_write=False) == found
    assert not ours.table
    assert await learned(ours, state=tmp_path) == found == ours.table["cluster_id"]
    assert await learned(other, state=tmp_path) != found
    second.table["cluster_id"] = "f" * 20  # another id, from a network partition
    assert await learned(ours, second) == found == second.table["cluster_id"]
