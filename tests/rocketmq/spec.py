"""The description of a cluster: plain values, stored in `cluster.json` so that a stopped cluster can start again."""

from __future__ import annotations

import contextlib
import errno
import json
import random
import socket
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.rocketmq import release
from tests.rocketmq.errors import ClusterError, NotEmbeddedError

HOST = "127.0.0.1"
FILE_NAME = "cluster.json"
BROKER_OFFSETS = (-2, 0, 1)  # a broker listens on its port, on port - 2 (the "VIP" channel), on port + 1 (replication)
CONTROLLER_OFFSET = 1  # from the name server's port
PROXY_OFFSETS = (0, 1)  # a proxy takes remoting on its port, gRPC on the next one


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A name server, a broker (master: `broker_id` 0) or a proxy; a process each, unless `process` names a common one.

    In controller mode `broker_id` is not the broker's real id. The controller assigns these, and 0 to the master.
    """

    name: str
    kind: str
    port: int
    broker_name: str = ""
    broker_id: int = 0
    process: str = ""

    @property
    def address(self) -> str:
        """host:port where clients connect."""
        return f"{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """`name_servers` and `brokers` masters, each with a slave if `slaves` is set; `settings` are the brokers'.

    `version` is RocketMQ's version, by default `release.wanted`. The embedded one is a single process with one name
    server and one broker, without the other features. With `tls`, self-signed TLS is accepted too. With `certificates`,
    only TLS is accepted, and both ends present a certificate of the authority in tests/certificates. With `controller`
    there are two brokers of each name, and the controller in the first name server chooses the master. With `proxy` a
    proxy in front of the brokers accepts both remoting and gRPC.
    """

    version: str = field(default_factory=release.wanted)
    brokers: int = 1
    broker_names: tuple[str, ...] = ()
    """In place of broker-a, broker-b and so on."""
    slaves: bool = False
    controller: bool = False
    proxy: bool = False
    name_servers: int = 1
    acl: bool = False
    tls: bool = False
    certificates: bool = False
    heap: str = "512m"
    is_measured: bool = False
    """Whether its programs are compiled as well as can be, which takes a fifth more of a core in tests."""
    settings: dict[str, str] = field(default_factory=dict)
    namesrv_port: int = 0
    broker_port: int = 0
    nodes: tuple[NodeSpec, ...] = ()

    def with_nodes(self) -> ClusterSpec:
        """Return a copy with free ports for every node. Raises NotEmbeddedError if the embedded one cannot do this."""
        process = ""
        if self.version == release.EMBEDDED:
            process = release.EMBEDDED
            several = self.brokers > 1 or self.slaves or self.controller or self.name_servers > 1 or self.proxy
            if several or self.acl or self.tls or self.certificates:
                raise NotEmbeddedError(
                    "the embedded RocketMQ has one name server and one broker, no proxy, no access control and no TLS"
                )
            if any(name.startswith("mappedFile") for name in self.settings):
                raise NotEmbeddedError("the embedded RocketMQ has no commit log to delete from")
        taken: set[int] = set()
        nodes = []
        for index in range(self.name_servers):
            name = f"namesrv-{chr(ord('a') + index)}" if index else "namesrv"
            given = self.namesrv_port + 10 * index if self.namesrv_port else 0
            port = given or free_port(taken, (0, CONTROLLER_OFFSET))
            taken.update((port, port + CONTROLLER_OFFSET))
            nodes.append(NodeSpec(name, "namesrv", port, process=process))
        for index in range(self.brokers):
            name = self.broker_names[index] if self.broker_names else f"broker-{chr(ord('a') + index)}"
            for broker_id, suffix in enumerate(("", "-s") if self.slaves or self.controller else ("",)):
                given = self.broker_port + 10 * index if self.broker_port and not suffix else 0
                port = given or free_port(taken, BROKER_OFFSETS)
                taken.update(port + offset for offset in BROKER_OFFSETS)
                nodes.append(NodeSpec(name + suffix, "broker", port, name, broker_id, process))
        if self.proxy:
            nodes.append(NodeSpec("proxy", "proxy", free_port(taken, PROXY_OFFSETS)))
        return replace(self, nodes=tuple(nodes))

    @property
    def controller_address(self) -> str:
        """The address of the controller, which brokers ask for their master."""
        return f"{HOST}:{self.nodes[0].port + CONTROLLER_OFFSET}"

    @property
    def name_server_addresses(self) -> str:
        """The addresses of all name servers, in the form of `namesrvAddr` and `nameserver:`."""
        return ";".join(node.address for node in self.nodes if node.kind == "namesrv")

    def with_another_port(self, name: str) -> ClusterSpec:
        """Return a copy with one node on a new port."""
        taken = {node.port + offset for node in self.nodes for offset in BROKER_OFFSETS}
        port = free_port(taken, BROKER_OFFSETS)
        nodes = (replace(node, port=port) if node.name == name else node for node in self.nodes)
        return replace(self, nodes=tuple(nodes))

    def with_settings(self, settings: dict[str, str]) -> ClusterSpec:
        """Return a copy with some broker settings added or changed."""
        return replace(self, settings={**self.settings, **settings})

    def save(self, directory: Path) -> None:
        """Write the description into the cluster's directory."""
        temporary = directory / (FILE_NAME + ".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.replace(directory / FILE_NAME)

    @classmethod
    def load(cls, directory: Path) -> ClusterSpec:
        """Read the description that `save` wrote. Raises ClusterError if it is missing."""
        try:
            values: dict[str, Any] = json.loads((directory / FILE_NAME).read_text())
        except FileNotFoundError:
            raise ClusterError(f"{directory} holds no cluster ({FILE_NAME} is missing)") from None
        values["nodes"] = tuple(NodeSpec(**node) for node in values["nodes"])
        values["broker_names"] = tuple(values["broker_names"])
        return cls(**values)


def free_port(taken: set[int], offsets: tuple[int, ...]) -> int:
    """A port P such that P + offset is free for every offset, below the range of outgoing connections."""
    for _ in range(500):
        port = random.randrange(20002, 32000)
        wanted = [port + offset for offset in offsets]
        if not taken.intersection(wanted) and _can_bind(wanted):
            return port
    raise ClusterError("no free ports between 20000 and 32000")


def _can_bind(ports: list[int]) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket()).bind(("0.0.0.0", port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            return False
    return True
