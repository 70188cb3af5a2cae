"""deploy/compose: its settings, used with the same programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.deploy.test_compose_files import FOLDER, broker_settings, services
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.rocketmq.spec import ClusterSpec
from tests.waiting import wait_until

# The settings of a broker's name and address; the tests' cluster has its own.
PLACES = ("brokerClusterName", "brokerName", "brokerId", "brokerIP1", "namesrvAddr", "listenPort")


@pytest.mark.rocketmq
@pytest.mark.slow
def test_rocketmq_accepts_the_settings_and_rmqd_the_groups(tmp_path: Path) -> None:
    """Without the settings of addresses. The broker creates the topic with the first message."""
    settings = {name: value for name, value in broker_settings().items() if name not in PLACES}
    groups = yaml.safe_load((FOLDER / "rmqd.yaml").read_text())["groups"]
    with (
        RealCluster.start(ClusterSpec(settings=settings, heap="384m")) as cluster,
        Producer(cluster.broker.address, services()["orders"]["command"][1], 1) as producer,
        RmqdProcess(tmp_path, cluster.nameserver, groups) as rmqd,
    ):
        producer.send()
        wait_until(lambda: rmqd.metric("rmqd_messages_handled_total", result="acked") == 1, "it is handled", 60)
