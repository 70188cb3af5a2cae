"""deploy/spark: the image and the manifest agree with what `rmqd spark submit` and a driver expect. Neither is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from rmqd.runtime.value_kinds import parse_duration_seconds
from rmqd.spark.submit import submission

TOP: Final = Path(__file__).parents[3]
FOLDER: Final = TOP / "deploy" / "spark"
DOCKERFILE: Final = (FOLDER / "Dockerfile").read_text()
# The keys of the operator's v1beta2, config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml, August 2026.
SPEC_KEYS: Final = set(
    "arguments batchScheduler batchSchedulerOptions deps driver driverIngressOptions dynamicAllocation executor "
    "failureRetries hadoopConf hadoopConfigMap image imagePullPolicy imagePullSecrets mainApplicationFile mainClass "
    "memoryOverheadFactor mode monitoring nodeSelector proxyUser pythonVersion restartPolicy retryInterval sparkConf "
    "sparkConfigMap sparkUIOptions sparkVersion suspend timeToLiveSeconds type volumes".split()
)
POD_KEYS: Final = set(
    "affinity annotations configMaps coreLimit coreRequest cores dnsConfig env envFrom gpu hostAliases hostNetwork "
    "image initContainers javaOptions labels lifecycle memory memoryLimit memoryOverhead nodeSelector "
    "podSecurityContext ports priorityClassName schedulerName secrets securityContext serviceAccount "
    "shareProcessNamespace sidecars template terminationGracePeriodSeconds tolerations volumeMounts".split()
)
RESTART_KEYS: Final = {"type"} | {
    f"on{what}{how}" for what in ("Failure", "SubmissionFailure") for how in ("Retries", "RetryInterval")
}


def manifests() -> tuple[dict[str, Any], dict[str, Any]]:
    """The ConfigMap and the SparkApplication."""
    config_map, application = yaml.safe_load_all((FOLDER / "rmqd-group.yaml").read_text())
    assert (config_map["kind"], application["kind"]) == ("ConfigMap", "SparkApplication")
    return config_map, application


def argument(name: str) -> str:
    """The default of a build argument."""
    found = re.search(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    return found[1]


def test_all_files_name_one_version_of_spark() -> None:
    """A driver and executors of different versions are incompatible."""
    pinned = re.search(r"^pyspark==(\S+)$", (TOP / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    _, application = manifests()

    assert argument("SPARK_IMAGE").partition(":")[2].partition("-")[0] == pinned[1]
    assert application["spec"]["sparkVersion"] == pinned[1]
    assert application["spec"]["image"].endswith(f":{pinned[1]}")


def test_the_manifest_has_only_keys_that_the_operator_knows() -> None:
    _, application = manifests()
    spec = application["spec"]

    assert application["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert spec.keys() <= SPEC_KEYS
    assert spec["driver"].keys() <= POD_KEYS
    assert spec["executor"].keys() <= POD_KEYS | {"instances", "deleteOnTermination"}
    assert spec["restartPolicy"].keys() <= RESTART_KEYS


def test_the_image_has_the_paths_that_submit_and_the_manifest_use() -> None:
    _, application = manifests()
    main = submission.IMAGE_MAIN.removeprefix("local://")

    assert application["spec"]["mainApplicationFile"] == submission.IMAGE_MAIN
    assert f"COPY deploy/spark/rmqd_group.py {main}\n" in DOCKERFILE
    assert f"PYSPARK_PYTHON={submission.IMAGE_PYTHON} " in DOCKERFILE
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((TOP / source).exists() for source in line.split()), line
    user = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert user is not None
    for pod in ("driver", "executor"):
        context = application["spec"][pod]["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))


def test_the_service_does_not_kill_spark_for_a_denied_system_call() -> None:
    """pyarrow calls mbind, which is among @resources; systemd's default is SIGSYS."""
    unit = (TOP / "deploy" / "rmqd.service").read_text()

    assert "\nSystemCallErrorNumber=EPERM\n" in unit
    assert parse_duration_seconds("30s") + 10 <= float(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0])
