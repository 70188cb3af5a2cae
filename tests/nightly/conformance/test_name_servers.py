"""Name servers from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.command import rmqd as run
from tests.conformance import behaviour
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until


@behaviour(
    "queues",
    "If no name server is configured, NAMESRV_ADDR names them",
    java="separated by ;",
    rmqd="the same, in the daemon and in commands",
    checked="a daemon and `rmqd lag` with the cluster named only in the environment",
)
def test_the_environment_names_the_cluster(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"{rocketmq.nameserver};127.0.0.1:1")
    rmqd = RmqdProcess(tmp_path, "", {group: ledger_group(topic, tmp_path / "ledger", "a")})
    document = yaml.safe_load(rmqd.config_path.read_text())
    del document["nameserver"]
    rmqd.config_path.write_text(yaml.safe_dump(document))
    with rmqd:
        rmqd.wait_ready()
        with Producer(rocketmq.broker.address, topic) as producer:
            producer.send(key="m1")
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "the message is handled and committed")
        told = run("lag", group)
        assert (told.code, topic in told.out) == (0, True), told.err
