"""RealCluster: name servers and brokers that tests start, break and query."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import certificates
from tests.rocketmq import jvm, readiness, release, rpc, settings
from tests.rocketmq.admin_shell import AdminShell
from tests.rocketmq.errors import ClusterError
from tests.rocketmq.fetch import say
from tests.rocketmq.node import Node
from tests.rocketmq.spec import ClusterSpec

POLL_SECONDS = 0.03
START_ATTEMPTS = 3


class RealCluster:
    """A cluster in a directory. Nodes run in the background, and outlive this object unless `stop` is called."""

    def __init__(self, directory: Path, spec: ClusterSpec) -> None:
        self.directory = directory
        self.spec = spec
        self.nodes = [Node(directory, node) for node in spec.nodes]
        self._admin: AdminShell | None = None
        self._admin_turn = threading.Lock()

    def __repr__(self) -> str:
        return f"<RealCluster {self.directory} {self.nodes}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(remove=True)

    # --- start and stop

    @classmethod
    def start(
        cls, spec: ClusterSpec | None = None, directory: Path | None = None, *, timeout_seconds: float = 90
    ) -> RealCluster:
        """Start a new cluster, and return once every broker is registered and has stored a message.

        Raises ClusterError with the end of the node's log if a node does not start. Free ports are chosen unless the
        spec names them, and chosen again if another process takes one in between.
        """
        spec = spec or ClusterSpec()
        directory = (directory or Path(tempfile.mkdtemp(prefix="rmqd-rocketmq-"))).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        fixed = bool(spec.namesrv_port or spec.broker_port)
        for attempt in range(1, START_ATTEMPTS + 1):
            cluster = cls(directory, spec.with_nodes())
            try:
                cluster.up(timeout_seconds=timeout_seconds)
            except BaseException as error:
                cluster.down(now=True)
                retry = isinstance(error, ClusterError) and cluster._port_was_taken() and not fixed
                if not retry or attempt == START_ATTEMPTS:
                    raise
                for node in cluster.nodes:
                    shutil.rmtree(node.directory, ignore_errors=True)
            else:
                return cluster
        raise AssertionError("unreachable")

    @classmethod
    def load(cls, directory: Path) -> RealCluster:
        """A cluster that another process started."""
        directory = directory.absolute()
        return cls(directory, ClusterSpec.load(directory))

    def up(
        self,
        nodes: Iterable[Node] | None = None,
        *,
        timeout_seconds: float = 90,
        record: dict[str, Path] | None = None,
    ) -> None:
        """Start these nodes (None: all), the name servers first, and wait until they work."""
        settings.write_files(self.directory, self.spec)
        self.spec.save(self.directory)
        deadline = time.monotonic() + timeout_seconds
        chosen = self.nodes if nodes is None else list(nodes)
        stages: list[list[Node]] = [[], [], []]
        for node in chosen:
            # with a controller, a broker may become ready only when both of its name run
            follows = node.spec.broker_id and not self.spec.controller
            late = follows or node.spec.kind == "proxy"
            stages[0 if node.spec.kind == "namesrv" else 2 if late else 1].append(node)
        for stage in stages:
            for node in stage:
                node.spawn(self.spec, (record or {}).get(node.spec.kind))
            for node in stage:
                self._wait_ready(node, deadline)

    def down(self, nodes: Iterable[Node] | None = None, *, now: bool = False, grace_seconds: float = 40) -> None:
        """Stop these nodes (None: all): gracefully, which takes a broker 11 s, or by SIGKILL with `now`."""
        chosen = list(reversed(self.nodes if nodes is None else list(nodes)))
        if not now:
            for node in chosen:
                node.signal(signal.SIGCONT)
                node.signal(signal.SIGTERM)
            deadline = time.monotonic() + grace_seconds
            if all(node.wait_gone(deadline - time.monotonic()) for node in chosen):
                return
            say(f"killing what still runs {grace_seconds:g} s after SIGTERM: {chosen}")
        for node in chosen:
            node.signal(signal.SIGKILL)
        for node in chosen:
            node.kill()

    def stop(self, *, now: bool = True, remove: bool = False) -> None:
        """Stop the cluster; with `remove` its directory is deleted too."""
        self.end_admin()
        self.down(now=now)
        if remove:
            shutil.rmtree(self.directory)

    # --- nodes and addresses

    @property
    def namesrv(self) -> Node:
        """The name server, or the first of them."""
        return self.nodes[0]

    @property
    def brokers(self) -> list[Node]:
        """Every broker."""
        return [node for node in self.nodes if node.spec.kind == "broker"]

    @property
    def masters(self) -> list[Node]:
        """The brokers that accept messages; with a controller, the masters that the name server knows."""
        if not self.spec.controller:
            return [node for node in self.brokers if not node.spec.broker_id]
        table = rpc.broker_table(self.nameserver, self.credentials)
        masters = {addresses.get(rpc.MASTER_ID) for addresses in table.values()}
        return [node for node in self.brokers if node.address in masters]

    @property
    def slaves(self) -> list[Node]:
        """The brokers that copy a master; empty with a controller, because they may become a master."""
        return [] if self.spec.controller else [node for node in self.brokers if node.spec.broker_id]

    @property
    def broker(self) -> Node:
        """The first master. Raises ClusterError if there is none."""
        masters = self.masters
        if not masters:
            raise ClusterError("the name server knows of no master")
        return masters[0]

    @property
    def nameserver(self) -> str:
        """The name server's address, or that of the first of them."""
        return self.namesrv.address

    @property
    def nameservers(self) -> str:
        """The addresses of all name servers, in the form of `nameserver:` in the configuration."""
        return self.spec.name_server_addresses

    @property
    def proxy(self) -> str:
        """The proxy's address for remoting, which replaces a name server. Raises ClusterError if there is no proxy."""
        return self.node("proxy").address

    @property
    def credentials(self) -> rpc.Credentials | None:
        """The credentials that the cluster requires of clients: the super user's keys, TLS. None if there are none."""
        if not (self.spec.acl or self.spec.certificates):
            return None
        keys = (settings.ACCESS_KEY, settings.SECRET_KEY) if self.spec.acl else ("", "")
        return rpc.Credentials(*keys, certificates.client_context() if self.spec.certificates else None)

    def node(self, name: str) -> Node:
        """Return a node by name; `broker` is the first master, `slave` the first slave."""
        if name == "broker":
            return self.broker
        masters = self.masters if name == "slave" else []
        for node in self.nodes:
            if name == node.name or (name == "slave" and node.spec.kind == "broker" and node not in masters):
                return node
        raise ClusterError(f"no node {name!r}; there are: {', '.join(node.name for node in self.nodes)}")

    # --- failures and restarts

    def kill(self, name: str = "broker") -> None:
        """kill -9 a node, and wait until it has ended."""
        self.node(name).kill()

    def pause(self, name: str = "broker") -> None:
        """SIGSTOP a node: connections stay open, without responses."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str = "broker") -> None:
        """SIGCONT a paused node."""
        self._signal(name, signal.SIGCONT)

    def restart(
        self,
        *names: str,
        now: bool = False,
        settings: dict[str, str] | None = None,
        timeout_seconds: float = 90,
    ) -> None:
        """Restart nodes (default: all), with changed broker settings if given. Killed nodes are started too."""
        chosen = [self.node(name) for name in names] or self.nodes
        self.down(chosen, now=now)
        self.spec = self.spec.with_settings(settings or {})
        self.up(chosen, timeout_seconds=timeout_seconds)

    def move(self, name: str = "broker", *, timeout_seconds: float = 90) -> None:
        """kill -9 a broker and start it again on another port, with the same name and stored data."""
        node = self.node(name)
        node.kill()
        self.spec = self.spec.with_another_port(node.name)
        node.spec = next(spec for spec in self.spec.nodes if spec.name == node.name)
        self.up([node], timeout_seconds=timeout_seconds)

    def wait_ready(self, timeout_seconds: float = 60) -> None:
        """Wait until every node works."""
        deadline = time.monotonic() + timeout_seconds
        for node in self.nodes:
            self._wait_ready(node, deadline)

    def check(self, node: Node) -> None:
        """Raise OSError or ClusterError unless this node works: it responds, is registered, and accepts a message."""
        readiness.check(node, self.nameserver, self.credentials)

    # --- changes and queries

    def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        permission: int = 6,
        message_type: str = "",
        attributes: str = "",
        brokers: Iterable[Node] | None = None,
    ) -> str:
        """Create or change a topic on every master, and wait until the name server lists it; returns its name.

        Running slaves get it at once too, because they query their master only once a minute. `permission` is 6 to read
        and write, 4 to read, 2 to write. With `brokers`, these brokers get the topic instead of all masters.
        """
        nodes = self.masters if brokers is None else list(brokers)
        fields: dict[str, object] = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": permission,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
            "attributes": attributes or (f"+message.type={message_type}" if message_type else ""),
        }
        slaves = self.slaves if brokers is None else []
        for node in [*nodes, *(slave for slave in slaves if slave.state == "running")]:
            rpc.call(node.address, rpc.UPDATE_AND_CREATE_TOPIC, fields, credentials=self.credentials)
        self._wait_route(name, [queues] * len(nodes))
        return name

    def create_lite(self, parent: str, *groups: str) -> str:
        """Create a topic for lite topics on every master, and bind groups to it; returns its name."""
        for group in groups:
            self.create_group(group, {"+lite.bind.topic": parent})
        return self.create_topic(parent, 4, message_type="LITE")

    def create_group(self, group: str, attributes: dict[str, str]) -> None:
        """Create or change a group on every master; the names of attributes begin with + or -."""
        body = json.dumps({"groupName": group, "attributes": attributes}).encode()
        for node in self.masters:
            rpc.call(node.address, rpc.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=body, credentials=self.credentials)

    def set_broker(self, **values: object) -> None:
        """Change settings of all brokers (request code 25). They are lost at the next `restart`."""
        body = "".join(f"{key}={value}\n" for key, value in values.items()).encode()
        for node in self.brokers:
            rpc.call(node.address, rpc.UPDATE_BROKER_CONFIG, body=body, credentials=self.credentials)

    def set_consume_mode(self, topic: str, group: str, mode: str, share_queues: int = 0) -> None:
        """Make members POP or PULL if they query the mode, as mqadmin setConsumeMode does.

        With POP, each member also uses the queues of the next `share_queues` members; 0: each uses all queues.
        """
        wanted = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share_queues}
        body = json.dumps(wanted).encode()
        for node in self.masters:
            rpc.call(node.address, rpc.SET_MESSAGE_REQUEST_MODE, body=body, credentials=self.credentials)

    def in_sync(self, broker_name: str) -> set[str]:
        """The addresses of the brokers of this name that are in sync, as the controller reports them."""
        body = json.dumps([broker_name]).encode()
        answer = rpc.call(self.spec.controller_address, rpc.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
        replicas = rpc.loose_json(answer.body)["replicasInfoTable"][broker_name]["inSyncReplicas"]
        return {replica["brokerAddress"] for replica in replicas}

    def admin(self, *arguments: str, check: bool = True) -> str:
        """Return the output of an `mqadmin` command, in any thread. Raises ClusterError if the command failed.

        All commands run in one JVM, so the first one takes seconds.
        """
        with self._admin_turn:
            if self._admin is None:
                tls = jvm.tls_options(certified=self.spec.certificates)
                version = release.named(self.spec.version).java
                self._admin = AdminShell(self.directory / "admin", version, home=self.directory, tls=tls)
            return self._admin.mqadmin(self.nameserver, *arguments, check=check)

    def end_admin(self) -> None:
        """End the JVM of mqadmin's commands if it runs."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    # --- internals

    def _signal(self, name: str, number: signal.Signals) -> None:
        node = self.node(name)
        if not node.signal(number):
            raise ClusterError(f"{node.name} is not running")

    def _wait_ready(self, node: Node, deadline: float) -> None:
        permission = self.spec.settings.get("brokerPermission", "6")
        readiness.wait(node, self.nameserver, self.credentials, permission, deadline)

    def _wait_route(self, topic: str, expected: list[int]) -> None:
        deadline = time.monotonic() + 10
        found: list[int] = []
        while time.monotonic() < deadline:  # the broker registers the topic at once, but in the background
            with contextlib.suppress(ClusterError):
                found = rpc.write_queue_counts(self.nameserver, topic, self.credentials)
            if found == expected:
                return
            time.sleep(POLL_SECONDS)
        raise ClusterError(f"the name server does not list {topic} as asked: {found} instead of {expected} queues")

    def _port_was_taken(self) -> bool:
        signs = ("address already in use", "failed to bind")
        return any(sign in node.log_tail().lower() for node in self.nodes for sign in signs)
