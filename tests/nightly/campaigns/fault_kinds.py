"""The faults of a fault run: the cluster, the damage, and the expectation on members during each fault."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.nightly.campaigns.bad_line import BadLine
from tests.nightly.campaigns.fault_scene import Scene
from tests.nightly.integration.fault_proxy import FaultProxy
from tests.rocketmq import ClusterSpec, RealCluster, rpc
from tests.waiting import wait_until

A, B = "broker-a", "broker-b"
HEAP = "384m"
GET_ALL_TOPIC_CONFIG = 21
BACKLOG_MESSAGES = 1000
FEWEST_DAMAGED = 20
SYNC_SECONDS = 60.0  # a slave copies its master's topics every 10 s


@contextlib.contextmanager
def straight(cluster: RealCluster, _seed: int) -> Iterator[tuple[str, BadLine | None]]:
    """No proxy between members and the cluster."""
    yield cluster.nameservers, None


@dataclass(frozen=True, slots=True)
class Fault:
    """`strike` breaks something in a running scene, checks that members continue, repairs it, and returns."""

    name: str
    strike: Callable[[Scene], None]
    specs: tuple[ClusterSpec, ...]
    """The clusters for the fault, used in turn."""
    way: Callable[[RealCluster, int], contextlib.AbstractContextManager[tuple[str, BadLine | None]]] = straight
    """The members' name server address, and the bad line to the broker, if any. The seed decides its damage."""

    @property
    def says(self) -> str:
        """The description of the fault for reports."""
        return (self.strike.__doc__ or "").splitlines()[0].rstrip(".")


def master_killed(scene: Scene) -> None:
    """A master is killed while its slave is up: members read from the slave until the master is back."""
    slave = scene.cluster.node("slave")
    wait_until(lambda: _has_topic(slave.address, scene.topic), "the slave knows the topic", SYNC_SECONDS)
    for member in scene.members.values():
        member.process.post(f"/api/v1/groups/{scene.group}/pause")
    backlog = set(scene.loads[A].sent)
    wait_until(lambda: len(scene.loads[A].sent.keys() - backlog) >= BACKLOG_MESSAGES, "a backlog", 60)
    backlog = set(scene.loads[A].sent)
    wait_until(lambda: _has_all(scene, slave.address, backlog), "the slave has the backlog", 60)
    scene.cluster.kill(A)
    for member in scene.members.values():
        member.process.post(f"/api/v1/groups/{scene.group}/resume")
    wait_until(lambda: scene.finished() >= backlog, "the backlog is handled while the master is dead", 90)
    scene.lasts()
    scene.cluster.restart(A)


def one_of_two_killed(scene: Scene) -> None:
    """One of two masters is killed, and restarts later."""
    scene.cluster.kill(A)
    with scene.while_others_go_on(B):
        scene.goes_on(B)
        scene.lasts()
    scene.cluster.restart(A)


def another_port(scene: Scene) -> None:
    """The broker is killed, and restarts on another port under the same name."""
    scene.cluster.move(A)


def no_name_server(scene: Scene) -> None:
    """All name servers are killed, and restart later."""
    names = [node.name for node in scene.cluster.nodes if node.spec.kind == "namesrv"]
    for name in names:
        scene.cluster.kill(name)
    with scene.while_others_go_on(A):
        scene.goes_on()
        scene.lasts()
    scene.cluster.restart(*names)
    scene.cluster.wait_ready()


def silent_broker(scene: Scene) -> None:
    """One of two brokers accepts connections and sends no responses (SIGSTOP), and resumes later."""
    scene.cluster.pause(A)
    with scene.while_others_go_on(B):
        scene.goes_on(B)
        scene.lasts()
    scene.cluster.resume(A)
    scene.cluster.wait_ready()


def bad_line(scene: Scene) -> None:
    """A share of all frames between members and the broker, 1 %, is cut, delayed or reset."""
    line = scene.line
    assert line is not None
    line.share = scene.damaged_share
    with scene.while_others_go_on(A):
        scene.lasts()
        wait_until(lambda: sum(line.damaged.values()) >= FEWEST_DAMAGED, f"{FEWEST_DAMAGED} frames are damaged", 300)
    line.share = 0.0


def elected_master(scene: Scene) -> None:
    """In controller mode the master is killed: the other broker becomes master, and the killed one restarts."""
    former = scene.cluster.broker
    wait_until(lambda: len(scene.cluster.in_sync(A)) == len(scene.cluster.brokers), "both are in sync", SYNC_SECONDS)
    scene.cluster.kill(former.name)
    wait_until(lambda: _is_replaced(scene.cluster, former.address), "the other broker is master", 90)
    scene.goes_on()
    scene.cluster.restart(former.name)


@contextlib.contextmanager
def through_bad_line(cluster: RealCluster, seed: int) -> Iterator[tuple[str, BadLine | None]]:
    """A name server that returns the proxy's address for the broker. There is no damage yet."""
    broker = cluster.broker.address
    with BadLine(broker, seed) as line, FaultProxy(cluster.nameserver, {broker: line.address}) as names:
        yield names.address, line


def _has_topic(address: str, topic: str) -> bool:
    return f'"{topic}"'.encode() in rpc.call(address, GET_ALL_TOPIC_CONFIG).body


def _has_all(scene: Scene, address: str, keys: set[str]) -> bool:
    """Return whether a broker has these messages, which were sent to broker-a."""
    ends = [
        int(rpc.call(address, rpc.GET_MAX_OFFSET, {"topic": scene.topic, "queueId": number}).fields["offset"])
        for number in range(scene.queues)
    ]
    places = (scene.loads[A].sent[key] for key in keys)
    return all(offset < ends[queue] for queue, offset in places)


def _is_replaced(cluster: RealCluster, former: str) -> bool:
    return [node.address for node in cluster.masters] not in ([], [former])


def _replicated(role: str) -> ClusterSpec:
    # without slaveReadEnable a slave answers every pull with SYSTEM_BUSY
    return ClusterSpec(slaves=True, heap=HEAP, settings={"brokerRole": role, "slaveReadEnable": "true"})


KINDS = {
    fault.name: fault
    for fault in (
        Fault("master_killed", master_killed, tuple(map(_replicated, ("ASYNC_MASTER", "SYNC_MASTER")))),
        Fault("one_of_two_killed", one_of_two_killed, (ClusterSpec(brokers=2, heap=HEAP),)),
        Fault("another_port", another_port, (ClusterSpec(heap=HEAP),)),
        Fault("no_name_server", no_name_server, (ClusterSpec(name_servers=2, heap=HEAP),)),
        Fault("silent_broker", silent_broker, (ClusterSpec(brokers=2, heap=HEAP),)),
        Fault("bad_line", bad_line, (ClusterSpec(heap=HEAP),), through_bad_line),
        Fault("elected_master", elected_master, (ClusterSpec(controller=True, heap=HEAP),)),
    )
}
