"""deploy/spark: the image's program runs the manifest's group with the manifest's arguments."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from rmqd.spark.session.group_spec import GroupSpec, load_spec, session_conf
from rmqd.spark.submit import submission, submitted
from tests.nightly.deploy.test_spark_manifest import FOLDER, manifests


@pytest.mark.spark
def test_the_driver_runs_the_group_of_its_config_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder replaces the mount."""
    config_map, application = manifests()
    spec = application["spec"]
    [mount] = spec["driver"]["configMaps"]
    assert mount["name"] == config_map["metadata"]["name"]
    for name, text in config_map["data"].items():
        (tmp_path / name).write_text(text)
    ran: list[GroupSpec] = []

    def run(order: GroupSpec, ended: Path | None) -> int:
        ran.append(order)
        return 0

    monkeypatch.setattr(submitted, "_run", run)
    arguments = [one.replace(mount["path"], str(tmp_path)) for one in spec["arguments"]]
    monkeypatch.setattr(sys, "argv", ["rmqd_group.py", *arguments])

    with pytest.raises(SystemExit) as exited:
        runpy.run_path(str(FOLDER / "rmqd_group.py"), run_name="__main__")

    assert exited.value.code == 0
    [order] = ran
    assert order.settings.engine == "spark"
    assert order.settings.spark is not None
    assert "://" in order.settings.spark.checkpoint  # a pod's files are lost with it
    grace = spec["driver"]["terminationGracePeriodSeconds"]
    assert grace >= order.settings.shutdown_timeout_seconds + submitted.SHUTDOWN_GRACE_SECONDS


@pytest.mark.spark
def test_the_manifest_has_the_required_session_settings(tmp_path: Path) -> None:
    config_map, application = manifests()
    path = tmp_path / "rmqd.yaml"
    path.write_text(config_map["data"]["rmqd.yaml"])
    conf = application["spec"]["sparkConf"]

    assert session_conf(load_spec(path, "", ()))["spark.speculation"] == conf["spark.speculation"] == "false"
    assert conf["spark.pyspark.python"] == submission.IMAGE_PYTHON
