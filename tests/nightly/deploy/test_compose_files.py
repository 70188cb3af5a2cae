"""deploy/compose: checks that need no container engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rmqd.config.load import load_config
from tests.cli.in_process import rmqd
from tests.deploy import PROMETHEUS

FOLDER = Path(__file__).parents[3] / "deploy" / "compose"


def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"])


def provisioned(path: str) -> dict[str, Any]:
    """A file of Grafana's provisioning."""
    return dict(yaml.safe_load((FOLDER.parent / "grafana" / "provisioning" / path).read_text()))


def broker_settings() -> dict[str, str]:
    lines = [line for line in (FOLDER / "broker.conf").read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_mounted_files_and_dockerfiles_exist() -> None:
    for name, service in services().items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (FOLDER / source).exists(), f"{name}: {volume}"
        if build := service.get("build"):
            assert (FOLDER / build["context"] / build["dockerfile"]).exists()


def test_services_find_each_other() -> None:
    """By the names and ports in each configuration file."""
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


def test_ports_are_published_only_on_localhost() -> None:
    """The services do not require passwords."""
    published = [port for service in services().values() for port in service.get("ports", ())]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_grafana_finds_the_dashboards_where_they_are_mounted() -> None:
    [provider] = provisioned("dashboards/rmqd.yml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services()["grafana"]["volumes"])

    assert mounts["../grafana/dashboards"] == provider["options"]["path"]
    assert mounts["../grafana/provisioning"] == "/etc/grafana/provisioning"


def test_the_rules_and_the_job_equal_the_shipped_prometheus_configuration() -> None:
    """Except for the target."""
    here, shipped = (yaml.safe_load((folder / "prometheus.yml").read_text()) for folder in (FOLDER, PROMETHEUS))
    for document in (here, shipped):
        del document["scrape_configs"][0]["static_configs"]

    assert here == shipped


def test_the_services_use_existing_commands_of_rmqd() -> None:
    for service in ("rmqd", "orders"):
        command = services()[service]["command"]
        shown = rmqd(command[0], "--help")
        assert shown.code == 0
        assert [part for part in command if part.startswith("--") and part not in shown.out] == []
