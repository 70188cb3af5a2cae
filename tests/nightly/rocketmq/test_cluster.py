"""The methods of the real RocketMQ that other tests use."""

from __future__ import annotations

import re

import pytest

from tests.rocketmq import ClusterError, ClusterSpec, RealCluster, rpc
from tests.rocketmq.spec import BROKER_OFFSETS, CONTROLLER_OFFSET


def test_no_two_nodes_share_a_port() -> None:
    """This includes the additional ports of a node, and a broker that moves to another port."""
    shape = ClusterSpec(version="5.5.0", brokers=2, controller=True, name_servers=2).with_nodes()
    moved = shape.with_another_port("broker-b-s")
    for spec in (shape, moved):
        ports = [
            node.port + offset
            for node in spec.nodes
            for offset in ((0, CONTROLLER_OFFSET) if node.kind == "namesrv" else BROKER_OFFSETS)
        ]
        assert len(ports) == len(set(ports)) == 2 * 2 + 4 * 3
    assert [(was.name, was.port == now.port) for was, now in zip(shape.nodes, moved.nodes, strict=True)] == [
        ("namesrv", True),
        ("namesrv-b", True),
        ("broker-a", True),
        ("broker-a-s", True),
        ("broker-b", True),
        ("broker-b-s", False),
    ]
    assert moved.name_server_addresses.count(";") == 1


def test_a_topic_has_the_requested_number_of_queues(rocketmq: RealCluster, group: str) -> None:
    """The name server lists a new topic when `create_topic` returns."""
    rocketmq.create_topic(group, queues=3)

    assert rpc.write_queue_counts(rocketmq.nameserver, group) == [3]


def test_a_failed_admin_command_is_an_error(rocketmq: RealCluster) -> None:
    """mqadmin always exits with 0, so its output is checked."""
    assert "broker-a" in rocketmq.admin("clusterList")
    with pytest.raises(ClusterError, match="not exist"):
        rocketmq.admin("noSuchCommand")


def test_a_setting_of_a_running_broker_can_be_changed(rocketmq_faulty: RealCluster) -> None:
    """Request code 25 needs no restart."""
    rocketmq_faulty.set_broker(maxTransferCountOnMessageInMemory=64)

    config = rocketmq_faulty.admin("getBrokerConfig", "-b", rocketmq_faulty.broker.address)

    assert re.search(r"maxTransferCountOnMessageInMemory\s*=\s*64\b", config)


def test_a_killed_broker_keeps_its_topics_after_a_restart(rocketmq_faulty: RealCluster, group: str) -> None:
    """A restart after kill -9 keeps ports and data."""
    rocketmq_faulty.create_topic(group, queues=2)
    rocketmq_faulty.kill("broker")
    assert rocketmq_faulty.broker.state == "dead"

    rocketmq_faulty.restart("broker")

    assert rpc.write_queue_counts(rocketmq_faulty.nameserver, group) == [2]


def test_a_paused_broker_responds_only_after_resume(rocketmq_faulty: RealCluster) -> None:
    """After SIGSTOP, connections stay open but nothing responds."""
    rocketmq_faulty.pause("broker")
    with pytest.raises(TimeoutError):
        rpc.call(rocketmq_faulty.broker.address, rpc.GET_BROKER_RUNTIME_INFO, timeout_seconds=0.2)

    rocketmq_faulty.resume("broker")

    rocketmq_faulty.wait_ready()
