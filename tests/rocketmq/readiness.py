"""Whether a node does its work, and waiting until it does."""

from __future__ import annotations

import contextlib
import time

from tests.rocketmq import rpc
from tests.rocketmq.errors import ClusterError, NotRegisteredError
from tests.rocketmq.node import Node

POLL_SECONDS = 0.03
NUDGE_EVERY_SECONDS = 0.15


def check(node: Node, nameserver: str, credentials: rpc.Credentials | None) -> None:
    """Raise OSError or ClusterError unless a node responds, is registered and, as a master, stores a message."""
    if node.spec.kind == "namesrv":
        rpc.call(node.address, rpc.GET_BROKER_CLUSTER_INFO, credentials=credentials)
        return
    if node.spec.kind == "proxy":
        rpc.call(node.address, rpc.GET_ROUTE_INFO_BY_TOPIC, {"topic": "TBW102"}, credentials=credentials)
        return
    registered = rpc.broker_table(nameserver, credentials).get(node.spec.broker_name, {})
    broker_id = next((number for number, address in registered.items() if address == node.address), None)
    if broker_id is None:
        raise NotRegisteredError(f"{node.name} is not registered with the name server")
    rpc.call(node.address, rpc.GET_BROKER_RUNTIME_INFO, credentials=credentials)  # 4.9 fails here for its first second
    if broker_id == rpc.MASTER_ID:
        rpc.store_probe(node.address, credentials)


def wait(node: Node, nameserver: str, credentials: rpc.Credentials | None, permission: str, deadline: float) -> None:
    """Wait until `check` passes. Raises ClusterError with the node's log if it ends, or at `deadline` (monotonic).

    `permission` is the broker's configured one, for the nudge.
    """
    next_nudge = 0.0
    while True:
        if not node.pid:
            raise ClusterError(f"{node.name} ended while starting:\n{node.log_tail()}")
        try:
            check(node, nameserver, credentials)
        except (OSError, ClusterError) as error:
            problem = error
        else:
            return
        if isinstance(problem, NotRegisteredError) and time.monotonic() > next_nudge:
            next_nudge = time.monotonic() + NUDGE_EVERY_SECONDS
            _nudge(node, credentials, permission)
        if time.monotonic() > deadline:
            raise ClusterError(f"{node.name} was not ready in time ({problem}):\n{node.log_tail()}")
        time.sleep(POLL_SECONDS)


def _nudge(node: Node, credentials: rpc.Credentials | None, permission: str) -> None:
    """Make a broker register now, by setting its permission to its current value.

    A broker that starts fast registers before its client has a connection to the name server, which then fails
    silently, and the next try is 10 s later.
    """
    with contextlib.suppress(OSError, ClusterError):
        body = f"brokerPermission={permission}\n".encode()
        rpc.call(node.address, rpc.UPDATE_BROKER_CONFIG, body=body, credentials=credentials)
