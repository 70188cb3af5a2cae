"""The id of a cluster. RocketMQ has no such id, so rmqd creates one and stores it in the name servers' key-value table.

Names and addresses do not identify a cluster: every test cluster is DefaultCluster with a broker-a, and a cluster's
addresses may change. Name servers keep the table over a restart, and mqadmin shows it. All brokers of the same name
servers share one id, because names of topics, groups and brokers are unique among these brokers.

Name servers do not copy the table to each other, so rmqd stores the id in each of them. If their ids differ, the oldest
id applies. If name servers lost the table, a member stores the id again. It finds the id in its file of known clusters,
which has the names and addresses of each cluster's brokers. If no broker matches, the cluster counts as new: messages
may then be handled twice, but no message is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from rmqd.client.api.admin_requests import cluster_info, get_kv, put_kv
from rmqd.client.api.remoting_request import SharedCalls
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.name_server_client import NameServers
from rmqd.errors import NameServerError, ProtocolError, RemotingTimeoutError, RmqdError
from rmqd.errors.broker_errors import BrokerError, QueryNotFoundError
from rmqd.runtime.own_threads import call_in_thread
from rmqd.wire.bodies.route_data import BrokerData, ClusterInfo

log = structlog.get_logger(__name__)

KV_NAMESPACE: Final = "RMQD"
KV_KEY: Final = "cluster_id"
CLUSTER_IDS_FILE_NAME: Final = "cluster-ids.json"
SETTLE_SECONDS: Final = 1.0  # if two members create ids at the same time, both see both ids after this time
MAX_UNANSWERED: Final = 3  # attempts if all requests time out, because a proxy may drop requests that it does not know
MAX_KNOWN_CLUSTERS: Final = 32


class ClusterId:
    """The id of the cluster that the name servers belong to. The folder `state_dir` has the file of known clusters."""

    def __init__(self, remoting: RemotingClient, name_servers: NameServers, state_dir: str) -> None:
        self.id = ""
        """The id; empty until `learn` has found it, or if the name servers do not store ids."""
        self.name = ""
        """The name of the cluster, which is used if there is no id."""
        self._is_known = False
        self._remoting = remoting
        self._name_servers = name_servers
        self._path = Path(state_dir or os.devnull) / CLUSTER_IDS_FILE_NAME
        self._learning = SharedCalls[bool, None](self._learn)

    async def learn(self, *, may_write: bool = True) -> str:
        """Return the cluster's id, or its name if there is no id. If `may_write` is True, a missing id is created.

        Raises NameServerError if no name server answers.
        """
        if not self._is_known:
            await self._learning(may_write)
        return self.id or self.name

    async def _learn(self, may_write: bool) -> None:
        if self._is_known:
            return
        held = await self._held()
        found = min(filter(None, held.values()), default="")
        known = self._known()
        may_note = may_write and self._path.parent.is_dir()
        info = ClusterInfo({}, {}) if found and not may_note else await self._info()
        if not found and held:
            here = _places(info.broker_addr_table)
            found = next((one for one, places in reversed(known.items()) if here & places), "")
        if may_write and held:
            found = await (self._give(found, held) if found else self._make(held))
        self.id, self.name = found, ",".join(sorted(info.cluster_addr_table))
        self._is_known = may_write or bool(found)
        if not found and may_write:
            log.warning("cluster.without_id", cluster=self.name, nameserver=";".join(self._name_servers.addresses))
        elif may_note and (places := _places(info.broker_addr_table)):
            known.pop(found, None)  # so that this cluster is added at the end, as the newest cluster
            await call_in_thread(partial(self._note, {**known, found: places}))

    async def _held(self) -> dict[str, str]:
        """Return the ids, by address, of the name servers that can store ids; "" for no id. Raises NameServerError."""
        servers = self._name_servers
        if not servers.addresses:
            await servers.look_up()

        async def ask(address: str) -> str | RmqdError:
            try:
                return await get_kv(self._remoting, address, KV_NAMESPACE, KV_KEY)
            except QueryNotFoundError:
                return ""
            except RmqdError as error:
                return error

        for _ in range(MAX_UNANSWERED):
            answers = dict(zip(servers.addresses, await asyncio.gather(*map(ask, servers.addresses)), strict=True))
            if not all(isinstance(one, RemotingTimeoutError) for one in answers.values()):
                break
        if all(map(_may_answer_later, answers.values())):
            raise NameServerError(";".join(answers), "no name server returned the cluster id")
        return {address: one for address, one in answers.items() if isinstance(one, str)}

    async def _give(self, found: str, held: Mapping[str, str]) -> str:
        """Store the id in the name servers that do not have it, and return the id."""
        await self._put(found, [address for address, one in held.items() if one != found])
        return found

    async def _make(self, held: Mapping[str, str]) -> str:
        """Create and store an id. Returns the oldest id, if another member created one too; "" if none was stored."""
        now_ms = round(self._remoting.clock.wall() * 1000)
        await self._put(f"{now_ms:012x}{secrets.token_hex(4)}", held)  # an older id is smaller
        await self._remoting.clock.sleep(SETTLE_SECONDS)
        held = await self._held()
        found = min(filter(None, held.values()), default="")
        return await self._give(found, held) if found else ""

    async def _put(self, found: str, addresses: Iterable[str]) -> None:
        async def put(address: str) -> None:
            try:
                await put_kv(self._remoting, address, KV_NAMESPACE, KV_KEY, found)
            except RmqdError as error:
                log.warning("cluster.id_not_kept", address=address, error=str(error))

        await asyncio.gather(*map(put, addresses))

    async def _info(self) -> ClusterInfo:
        try:
            return await self._name_servers.ask(lambda address: cluster_info(self._remoting, address))
        except RmqdError:  # expected from a proxy, which forwards few requests
            return ClusterInfo({}, {})

    def _known(self) -> dict[str, set[str]]:
        """Return the known clusters from the file: id to a set of `broker@address`. The newest cluster is last."""
        try:
            document = json.loads(self._path.read_text())
            return {str(one): {*map(str, places)} for one, places in document.items()}
        except (OSError, ValueError, AttributeError, TypeError):  # the file is only a backup
            return {}

    def _note(self, known: dict[str, set[str]]) -> None:
        content = json.dumps({one: sorted(places) for one, places in [*known.items()][-MAX_KNOWN_CLUSTERS:]}, indent=1)
        temporary = self._path.with_name(f"{CLUSTER_IDS_FILE_NAME}.{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_text(content)
            temporary.replace(self._path)


def _may_answer_later(answer: str | RmqdError) -> bool:
    if isinstance(answer, BrokerError):
        return answer.retriable
    return isinstance(answer, RmqdError) and not isinstance(answer, ProtocolError | RemotingTimeoutError)


def _places(brokers: Mapping[str, BrokerData]) -> set[str]:
    return {f"{name}@{at}" for name, data in brokers.items() for at in data.broker_addrs.values()}
