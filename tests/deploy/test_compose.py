"""deploy/compose: what can be said without a container engine, and its settings tried with the same programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.config.load import load_config
from tests.deploy.prometheus_process import FOLDER as PROMETHEUS
from tests.integration.rmqd_process import RmqdProcess
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.rocketmq.spec import ClusterSpec
from tests.waiting import wait_until

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "compose"
# What says where a broker is; the tests' cluster has its own.
PLACES = ("brokerClusterName", "brokerName", "brokerId", "brokerIP1", "namesrvAddr", "listenPort")


def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"])


def provisioned(path: str) -> dict[str, Any]:
    """A file of Grafana's provisioning."""
    return dict(yaml.safe_load((FOLDER.parent / "grafana" / "provisioning" / path).read_text()))


def broker_settings() -> dict[str, str]:
    lines = [line for line in (FOLDER / "broker.conf").read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_what_it_mounts_and_builds_from_is_there() -> None:
    for name, service in services().items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (FOLDER / source).exists(), f"{name}: {volume}"
        if build := service.get("build"):
            assert (FOLDER / build["context"] / build["dockerfile"]).exists()


def test_services_find_each_other() -> None:
    """By their names and ports, in each file that names one."""
    names = services().keys()
    assert {one for service in services().values() for one in service.get("depends_on", ())} <= names
    settings = broker_settings()
    assert settings["brokerIP1"] in names
    assert settings["namesrvAddr"] == "namesrv:9876"
    assert services()["rmqd"]["command"][-1] == "/etc/rmqd/rmqd.yaml"
    config = load_config(FOLDER / "rmqd.yaml", environ={})
    assert config.nameserver == (settings["namesrvAddr"],)
    prometheus = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    [job] = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"rmqd:{config.http.listen.rpartition(':')[2]}"]}]
    [source] = provisioned("datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]


def test_nothing_listens_beyond_this_machine() -> None:
    """As nothing in it asks for a password."""
    published = [port for service in services().values() for port in service.get("ports", ())]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_grafana_finds_the_dashboards_where_they_are_mounted() -> None:
    [provider] = provisioned("dashboards/rmqd.yml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services()["grafana"]["volumes"])

    assert mounts["../grafana/dashboards"] == provider["options"]["path"]
    assert mounts["../grafana/provisioning"] == "/etc/grafana/provisioning"


def test_the_rules_and_the_job_are_those_of_the_shipped_prometheus() -> None:
    """But for the target."""
    here, shipped = (yaml.safe_load((folder / "prometheus.yml").read_text()) for folder in (FOLDER, PROMETHEUS))
    for document in (here, shipped):
        del document["scrape_configs"][0]["static_configs"]

    assert here == shipped


@pytest.mark.process
@pytest.mark.parametrize("service", ["rmqd", "orders"])
def test_the_commands_are_ones_that_rmqd_has(service: str) -> None:
    command = services()[service]["command"]
    done = subprocess.run(
        [sys.executable, "-m", "rmqd", command[0], "--help"], capture_output=True, text=True, check=True
    )

    assert all(part in done.stdout for part in command if part.startswith("--"))


@pytest.mark.rocketmq
@pytest.mark.slow
def test_a_rocketmq_takes_the_settings_and_rmqd_the_groups(tmp_path: Path) -> None:
    """As far as this machine's addresses allow. The topic is made by the broker, when the first message comes."""
    settings = {name: value for name, value in broker_settings().items() if name not in PLACES}
    groups = yaml.safe_load((FOLDER / "rmqd.yaml").read_text())["groups"]
    with (
        RealCluster.start(ClusterSpec(settings=settings, heap="384m")) as cluster,
        Producer(cluster.broker.address, services()["orders"]["command"][1], 1) as producer,
        RmqdProcess(tmp_path, cluster.nameserver, groups) as rmqd,
    ):
        producer.send()
        wait_until(lambda: rmqd.metric("rmqd_messages_handled_total", result="acked") == 1, "it is handled", 60)
