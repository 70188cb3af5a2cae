"""What a cluster consists of: plain values, kept in `cluster.json` so that a stopped cluster can start again."""

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


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The name server, or a broker (master: `broker_id` 0); a process each, unless `process` names a common one."""

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
    """A name server and `brokers` masters, each with a slave where asked; `settings` are the brokers'.

    `version` is RocketMQ's: the one that RMQD_TEST_ROCKETMQ names, where nothing else is asked for. The embedded one is
    a single process of one broker, without the rest. With `tls` TLS is taken too, self-signed; with `certificates`
    nothing else is, and both ends show a certificate of the authority in tests/certificates.
    """

    version: str = field(default_factory=release.wanted)
    brokers: int = 1
    broker_names: tuple[str, ...] = ()
    """In place of broker-a, broker-b and so on."""
    slaves: bool = False
    acl: bool = False
    tls: bool = False
    certificates: bool = False
    heap: str = "512m"
    settings: dict[str, str] = field(default_factory=dict)
    namesrv_port: int = 0
    broker_port: int = 0
    nodes: tuple[NodeSpec, ...] = ()

    def with_nodes(self) -> ClusterSpec:
        """The same with free ports for every node; raises NotEmbeddedError where the embedded one can't be so."""
        process = ""
        if self.version == release.EMBEDDED:
            process = release.EMBEDDED
            if self.brokers > 1 or self.slaves or self.acl or self.tls or self.certificates:
                raise NotEmbeddedError("the embedded RocketMQ has one broker, no slaves, no access control and no TLS")
        taken: set[int] = set()
        namesrv = NodeSpec("namesrv", "namesrv", self.namesrv_port or free_port(taken, (0,)), process=process)
        taken.add(namesrv.port)
        nodes = [namesrv]
        for index in range(self.brokers):
            name = self.broker_names[index] if self.broker_names else f"broker-{chr(ord('a') + index)}"
            for broker_id, suffix in enumerate(("", "-s") if self.slaves else ("",)):
                given = self.broker_port + 10 * index if self.broker_port and not suffix else 0
                # a broker listens on its port, on that - 2 (the "VIP" channel) and on that + 1 (replication)
                port = given or free_port(taken, (-2, 0, 1))
                taken.update((port - 2, port, port + 1))
                nodes.append(NodeSpec(name + suffix, "broker", port, name, broker_id, process))
        return replace(self, nodes=tuple(nodes))

    def with_settings(self, settings: dict[str, str]) -> ClusterSpec:
        """The same with some broker settings added or changed."""
        return replace(self, settings={**self.settings, **settings})

    def save(self, directory: Path) -> None:
        """Write the description into the cluster's directory."""
        temporary = directory / (FILE_NAME + ".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.replace(directory / FILE_NAME)

    @classmethod
    def load(cls, directory: Path) -> ClusterSpec:
        """Read what `save` wrote; raises ClusterError where there is none."""
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
