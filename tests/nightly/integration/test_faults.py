"""Brokers and name servers that hang and recover, and cut connections: rmqd continues automatically."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.nightly.integration.fault_proxy import FaultProxy
from tests.rocketmq import RealCluster
from tests.smoke.test_restart import handled, loaded_daemon
from tests.waiting import wait_until

PAUSE_SECONDS = 20


def test_name_server_restart(rocketmq_faulty: RealCluster, tmp_path: Path) -> None:
    """Without its name server the daemon continues with its present routes."""
    with loaded_daemon(rocketmq_faulty, tmp_path, rocketmq_faulty.nameserver, 2000) as (_, _, path):
        rocketmq_faulty.kill("namesrv")
        seen = len(handled(path))
        wait_until(lambda: len(handled(path)) > seen + 300, "messages are handled without a name server", 10)
        rocketmq_faulty.restart("namesrv")
        rocketmq_faulty.wait_ready()


@pytest.mark.slow
def test_broker_pause(rocketmq_faulty: RealCluster, tmp_path: Path) -> None:
    """A broker hangs with open connections, as in a long garbage collection. No message is lost."""
    with loaded_daemon(rocketmq_faulty, tmp_path, rocketmq_faulty.nameserver, 2000):
        rocketmq_faulty.pause("broker")
        time.sleep(PAUSE_SECONDS)
        rocketmq_faulty.resume("broker")


def test_connection_cut_inside_a_frame(rocketmq_faulty: RealCluster, tmp_path: Path) -> None:
    """Half of a pull response is discarded with its connection, and the queue continues at the same offset."""
    broker = rocketmq_faulty.broker.address
    with (
        FaultProxy(broker) as line,
        FaultProxy(rocketmq_faulty.nameserver, {broker: line.address}) as names,
        loaded_daemon(rocketmq_faulty, tmp_path, names.address, 3000) as (rmqd, _, _),
    ):
        for _ in range(5):
            line.cut_inside_next_frame(above_bytes=250)
            wait_until(lambda: not line.armed, "the line is cut inside a frame", 20)
            wait_until(lambda: rmqd.metric("rmqd_broker_up") >= 1, "rmqd is connected again", 20)
