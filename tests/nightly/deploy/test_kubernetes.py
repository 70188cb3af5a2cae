"""deploy/kubernetes: the manifests agree with rmqd and with each other.

To check them against the schemas of Kubernetes: `pip install kubernetes-validate`, then
`kubectl kustomize deploy/kubernetes >all.yaml && kubernetes-validate --strict -k 1.31 all.yaml`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.config.load import load_config
from rmqd.config.model.root_model import RootConfig
from rmqd.daemon.groups.supervisor import END_GRACE_SECONDS
from tests.deploy import RULES
from tests.nightly.deploy.test_dockerfile import last

TOP = Path(__file__).parents[3]
FOLDER = TOP / "deploy" / "kubernetes"
BASE = FOLDER / "base"
PAGE = TOP / "docs" / "kubernetes.md"
# The fields of monitoring.coreos.com/v1 and keda.sh/v1alpha1, August 2026, that the manifests use.
SERVICE_MONITOR_KEYS = {"jobLabel", "selector", "endpoints"}
SCALED_OBJECT_KEYS = {
    *("scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "fallback", "advanced", "triggers"),
}


def manifest(path: str) -> dict[str, Any]:
    """The only manifest of a file."""
    return dict(yaml.safe_load((FOLDER / path).read_text()))


def pod() -> dict[str, Any]:
    return dict(manifest("base/deployment.yaml")["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    [found] = pod()["containers"]
    return dict(found)


def mounts() -> dict[str, dict[str, Any]]:
    """The container's volumes by their mount paths."""
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container()["volumeMounts"]}


@pytest.fixture
def config(tmp_path: Path) -> RootConfig:
    """The ConfigMap's configuration, as `rmqd check` reads it, with a folder instead of the Secret."""
    text = (BASE / "rmqd.yaml").read_text()
    files = re.findall(r"\$\{file:/run/secrets/rocketmq/(\w+)\}", text)
    assert sorted(files) == ["access_key", "secret_key"]
    for name in files:
        (tmp_path / name).write_text("a secret")
    (tmp_path / "rmqd.yaml").write_text(text.replace("/run/secrets/rocketmq", str(tmp_path)))
    return load_config(tmp_path / "rmqd.yaml", environ={})


def test_every_file_belongs_to_a_kustomization() -> None:
    for path in FOLDER.rglob("kustomization.yaml"):
        kustomization = yaml.safe_load(path.read_text())
        named = [*kustomization.get("resources", ()), *kustomization.get("components", ())]
        named += [name for made in kustomization.get("configMapGenerator", ()) for name in made["files"]]
        assert all((path.parent / name).exists() for name in named), path
        there = {other.name for other in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert there == {name for name in named if name.endswith(".yaml")}, path


def test_the_configuration_is_mounted_where_the_command_reads_it(config: RootConfig) -> None:
    command, option, path = container()["args"]
    assert (command, option) == ("run", "--config")
    folder, _, name = path.rpartition("/")
    [made] = manifest("base/kustomization.yaml")["configMapGenerator"]

    assert made["files"] == [name]
    assert mounts()[folder]["configMap"]["name"] == made["name"]
    assert mounts()["/run/secrets/rocketmq"]["secret"]["secretName"] == "rocketmq"
    assert str(config.state_dir) in mounts()


def test_the_termination_grace_period_covers_the_drain(config: RootConfig) -> None:
    pause = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = max(group.shutdown_timeout_seconds for group in config.groups.values())

    assert pod()["terminationGracePeriodSeconds"] >= pause + drain + END_GRACE_SECONDS
    assert pause >= max(group.queue_handover_timeout_seconds for group in config.groups.values())


def test_probes_and_prometheus_use_the_port_of_rmqd(config: RootConfig) -> None:
    [port] = container()["ports"]
    host, _, number = config.http.listen.rpartition(":")

    assert (host, int(number)) == ("0.0.0.0", port["containerPort"])
    probes = {name: container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert (probes["liveness"]["path"], probes["readiness"]["path"]) == ("/livez", "/readyz")
    [of_service] = manifest("base/service.yaml")["spec"]["ports"]
    assert (of_service["port"], of_service["targetPort"]) == (port["containerPort"], port["name"])
    [endpoint] = manifest("components/prometheus-operator/servicemonitor.yaml")["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (of_service["name"], "/metrics")
    [ingress] = manifest("base/networkpolicy.yaml")["spec"]["ingress"]
    assert ingress["ports"] == [{"port": port["name"]}]


def test_the_network_policy_allows_the_name_server(config: RootConfig) -> None:
    rules = manifest("base/networkpolicy.yaml")["spec"]["egress"]
    open_ports = {port["port"] for rule in rules for port in rule["ports"]}
    host, _, port = str(yaml.safe_load((BASE / "rmqd.yaml").read_text())["nameserver"]).rpartition(":")
    spaces = [to["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for r in rules for to in r["to"]]

    assert {53, int(port), 10911} <= open_ports
    assert host.split(".")[1] in spaces


def test_the_pod_runs_as_the_images_user_without_further_privileges() -> None:
    user, group = map(int, last("USER").split(":"))
    context, of_pod = container()["securityContext"], pod()["securityContext"]

    assert (of_pod["runAsUser"], of_pod["runAsGroup"], of_pod["fsGroup"]) == (user, group, group)
    assert of_pod["runAsNonRoot"] is True
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod()["automountServiceAccountToken"] is False
    assert "cpu" not in container()["resources"]["limits"]


def test_labels_and_names_agree() -> None:
    """ServiceMonitor and topology spread select the labels that kustomize adds, and the rules use the same job."""
    [label] = manifest("base/kustomization.yaml")["labels"]
    monitor = manifest("components/prometheus-operator/servicemonitor.yaml")
    scaled = manifest("components/keda/scaledobject.yaml")
    [spread] = pod()["topologySpreadConstraints"]

    assert monitor["spec"].keys() == SERVICE_MONITOR_KEYS
    assert monitor["spec"]["selector"]["matchLabels"] == label["pairs"] == spread["labelSelector"]["matchLabels"]
    assert f'up{{job="{label["pairs"][monitor["spec"]["jobLabel"]]}"}}' in RULES.read_text()
    assert scaled["spec"].keys() == SCALED_OBJECT_KEYS
    target = manifest("base/deployment.yaml")
    assert scaled["spec"]["scaleTargetRef"] == {"kind": target["kind"], "name": target["metadata"]["name"]}
    assert target["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert manifest("base/poddisruptionbudget.yaml")["spec"]["maxUnavailable"] == 1


def test_keda_queries_a_group_of_the_configuration(config: RootConfig) -> None:
    """The query itself is run by tests/nightly/deploy/test_scene.py."""
    scaled = manifest("components/keda/scaledobject.yaml")["spec"]
    [trigger] = scaled["triggers"]
    group = re.search(r'group="([\w-]+)"', trigger["metadata"]["query"])
    namespace = re.search(r'namespace="([\w-]+)"', trigger["metadata"]["query"])

    assert group is not None
    assert group[1] in config.groups
    assert namespace is not None
    assert namespace[1] == manifest("kustomization.yaml")["namespace"]
    assert 0 < scaled["minReplicaCount"] < scaled["maxReplicaCount"]


def test_broadcasting_removes_the_volume_that_its_claim_replaces() -> None:
    [patch] = manifest("components/broadcasting/kustomization.yaml")["patches"]
    operations = {operation["path"]: operation for operation in yaml.safe_load(patch["patch"])}
    removed = next(path for path, one in operations.items() if one["op"] == "remove" and "/volumes/" in path)
    [claim] = operations["/spec/volumeClaimTemplates"]["value"]

    assert pod()["volumes"][int(removed.rpartition("/")[2])]["name"] == claim["metadata"]["name"]
    assert operations["/kind"]["value"] == "StatefulSet"
    assert operations["/spec/serviceName"]["value"] == manifest("base/service.yaml")["metadata"]["name"]


@pytest.mark.process
def test_the_documented_command_converts_the_rules_to_a_prometheus_rule() -> None:
    [command] = re.findall(r"^```sh\n(\{ cat.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    shown = re.sub(r"\| kubectl apply .*", "", command)
    done = subprocess.run(["sh", "-c", shown], cwd=TOP, capture_output=True, text=True, check=True)

    made = yaml.safe_load(done.stdout)
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert made["spec"] == yaml.safe_load(RULES.read_text())
