"""The arguments of `rmqd spark submit` for spark-submit, and the submissions that it refuses."""

from __future__ import annotations

import itertools
import os
import pickle
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.errors import ConfigError
from rmqd.spark.session.group_spec import load_spec, session_conf
from rmqd.spark.submit.submission import SparkSubmission, make_submission, write_submit_files
from tests.cli.command import rmqd

pytestmark = pytest.mark.spark  # the configuration of such a group is refused without PySpark

FOLDER = Path("/scratch")
STANDALONE = "spark://spark-1:7077"
KUBERNETES = "k8s://https://kubernetes:6443"
IMAGE = {"spark.kubernetes.container.image": "registry.example.com/rmqd-spark"}
UPLOAD = {"spark.kubernetes.file.upload.path": "s3a://bucket/upload"}


def config_file(
    folder: Path, *, master: str = STANDALONE, checkpoint: str = "", conf: dict[str, Any] | None = None
) -> Path:
    """A configuration with the group `mailer` on Spark, and `shop` which is not."""
    spark = {"master": master, "checkpoint": checkpoint, "conf": conf or {}}
    common: dict[str, Any] = {"subscriptions": {"orders": "*"}, "handler": {"plugin": "log"}}
    groups = {"mailer": {**common, "engine": "spark", "spark": spark}, "shop": common}
    path = folder / "rmqd.yaml"
    path.write_text(yaml.safe_dump({"nameserver": "127.0.0.1:9876", "state_dir": "state", "groups": groups}))
    return path


def submission(tmp_path: Path, *, environment: str = "environment.tar.gz", **asked: Any) -> SparkSubmission:
    """Return the submission of a group with some of its settings."""
    said = {key: asked.pop(key) for key in ("master", "checkpoint", "conf") if key in asked}
    order = load_spec(config_file(tmp_path, **said), "mailer", ())
    return make_submission(order, session_conf(order), environment=environment, **asked)


def options(command: list[str]) -> dict[str, list[str]]:
    """Return the values of each option."""
    found: dict[str, list[str]] = {}
    for name, value in itertools.pairwise(command):
        if name.startswith("--"):
            found.setdefault(name, []).append(value)
    return found


def refused(tmp_path: Path, **asked: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        submission(tmp_path, **asked)
    return [str(problem) for problem in raised.value.problems]


def test_on_a_standalone_cluster_the_driver_runs_here_with_a_packed_archive(tmp_path: Path) -> None:
    asked = submission(tmp_path, conf={"spark.executor.memory": "2g", "spark.ui.enabled": True})

    command = asked.command("spark-submit", FOLDER)

    found = options(command)
    assert (found["--master"], found["--deploy-mode"]) == ([STANDALONE], ["client"])
    assert found["--archives"] == ["environment.tar.gz#environment"]
    assert "--files" not in found
    assert {
        "spark.executor.memory=2g",
        "spark.ui.enabled=true",
        "spark.speculation=false",
        "spark.pyspark.python=./environment/bin/python",
    } <= set(found["--conf"])
    assert command[-5:] == [
        "/scratch/rmqd_group.py", "--order", "/scratch/rmqd_group.spec", "--ended", "/scratch/ended",
    ]  # fmt: skip


def test_on_yarn_the_driver_runs_in_the_cluster(tmp_path: Path) -> None:
    asked = submission(tmp_path, master="yarn", deploy_mode="cluster", checkpoint="hdfs:///checkpoints")

    command = asked.command("spark-submit", FOLDER)

    found = options(command)
    assert (found["--master"], found["--deploy-mode"]) == (["yarn"], ["cluster"])
    assert found["--archives"] == ["environment.tar.gz#environment"]
    assert found["--files"] == ["/scratch/rmqd_group.spec"]
    assert not any("driver.python" in one for one in found["--conf"])  # a path of this machine
    assert command[-3:] == ["/scratch/rmqd_group.py", "--order", "rmqd_group.spec"]


def test_on_kubernetes_everything_is_in_the_image(tmp_path: Path) -> None:
    conf = {**IMAGE, **UPLOAD, "spark.submit.deployMode": "cluster"}
    asked = submission(tmp_path, environment="none", master=KUBERNETES, checkpoint="s3a://bucket/c", conf=conf)

    command = asked.command("spark-submit", FOLDER)

    found = options(command)
    assert found["--deploy-mode"] == ["cluster"]
    assert "--archives" not in found
    assert "spark.pyspark.python=/opt/rmqd/bin/python" in found["--conf"]
    assert command[-3:] == ["local:///opt/rmqd/rmqd_group.py", "--order", "rmqd_group.spec"]


def test_secrets_are_passed_in_a_private_file(tmp_path: Path) -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": "a\\b", "spark.hadoop.fs.s3a.access.key": "mine"}
    asked = submission(tmp_path, conf=conf)
    folder = tmp_path / "scratch"

    write_submit_files(asked, folder)

    command = asked.command("spark-submit", folder)
    assert not any("s3a" in part for part in command)
    assert options(command)["--properties-file"] == [str(folder / "secret.properties")]
    assert "--load-spark-defaults" in command
    assert (folder / "secret.properties").read_text().splitlines() == [
        "spark.hadoop.fs.s3a.access.key mine",
        "spark.hadoop.fs.s3a.secret.key a\\\\b",
    ]
    for name in ("secret.properties", "rmqd_group.spec"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_specification_has_only_its_group_and_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = submission(tmp_path, checkpoint="checkpoints")
    folder = tmp_path / "scratch"

    write_submit_files(asked, folder)

    order = pickle.loads((folder / "rmqd_group.spec").read_bytes())
    assert (order.name, list(order.config.groups)) == ("mailer", ["mailer"])
    assert order.config.state_dir == str(tmp_path / "state")
    assert order.settings.spark.checkpoint == str(tmp_path / "checkpoints")
    assert all(os.path.isabs(one) for one in order.import_path)


def test_the_driver_here_finds_python_at_the_executors_path(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    write_submit_files(submission(tmp_path), folder)

    said = subprocess.run(
        ["./environment/bin/python", "-c", "import rmqd.spark; print('found')"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert said.stdout == "found\n"


def test_a_master_that_is_only_this_machine_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, master="local[2,4]") == [
        "groups.mailer.spark.master: local[2,4] is only this machine; expected spark://HOST:7077, yarn or "
        "k8s://URL, here or in --master; to run it on this machine, use rmqd spark run mailer"
    ]


@pytest.mark.parametrize("url", ["s3a://bucket/it", "file:/var/lib/it", "hdfs:///it"])
def test_a_relative_checkpoint_is_resolved_and_a_url_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for said, meant in ((url, url), ("state/it", f"{tmp_path}/state/it"), ("/var/lib/it", "/var/lib/it")):
        settings = load_spec(config_file(tmp_path, checkpoint=said), "mailer", ()).settings
        assert settings.spark is not None
        assert settings.spark.checkpoint == meant


def test_a_driver_in_the_cluster_needs_a_shared_checkpoint(tmp_path: Path) -> None:
    for checkpoint, told in (("", "missing, and the default is"), ("/var/checkpoints", "/var/checkpoints is")):
        (problem,) = refused(tmp_path, master="yarn", deploy_mode="cluster", checkpoint=checkpoint)
        assert problem.startswith(f"groups.mailer.spark.checkpoint: {told} a folder of the driver's machine")
    asked = submission(tmp_path, master="yarn", deploy_mode="client", checkpoint="/var/checkpoints")
    assert asked.runs_on_this_machine


def test_submissions_that_spark_does_not_support_are_refused_first(tmp_path: Path) -> None:
    url = "hdfs:///checkpoints"
    (problem,) = refused(tmp_path, deploy_mode="cluster", checkpoint=url)
    assert "a standalone cluster does not support deploy mode cluster" in problem
    (problem,) = refused(tmp_path, deploy_mode="clutser", checkpoint=url)
    assert problem == "groups.mailer.spark.conf.spark.submit.deployMode: 'clutser'; expected client | cluster"
    problems = refused(tmp_path, master=KUBERNETES, deploy_mode="cluster", checkpoint=url, environment="none")
    assert [problem.partition(": ")[0] for problem in problems] == [
        "groups.mailer.spark.conf.spark.kubernetes.container.image",
        "groups.mailer.spark.conf.spark.kubernetes.file.upload.path",
    ]


def test_archives_and_files_of_the_group_are_added_to_ours(tmp_path: Path) -> None:
    conf = {"spark.archives": "hdfs:///model.zip#model", "spark.files": "/etc/ca.pem"}
    asked = submission(tmp_path, conf=conf, master="yarn", deploy_mode="cluster", checkpoint="hdfs:///checkpoints")

    command = asked.command("spark-submit", FOLDER)

    found = options(command)
    assert found["--archives"] == ["environment.tar.gz#environment,hdfs:///model.zip#model"]
    assert found["--files"] == ["/scratch/rmqd_group.spec,/etc/ca.pem"]
    assert not any(one.startswith(("spark.archives", "spark.files")) for one in found["--conf"])


def test_local_files_are_found_from_the_folder_of_spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("packed.tar.gz", "model.zip", "one.jar"):
        (tmp_path / name).touch()
    conf = {"spark.archives": "model.zip#model"}
    asked = submission(tmp_path, environment="packed.tar.gz", conf=conf, passed=["--jars", "one.jar,hdfs:///b.jar"])

    found = options(asked.command("spark-submit", FOLDER))

    assert found["--archives"] == [f"{tmp_path}/packed.tar.gz#environment,{tmp_path}/model.zip#model"]
    assert found["--jars"] == [f"{tmp_path}/one.jar,hdfs:///b.jar"]


def test_options_that_rmqd_sets_are_refused(tmp_path: Path) -> None:
    assert refused(
        tmp_path, passed=["--archives", "model.zip", "--deploy-mode=cluster", "--executor-memory", "2g"]
    ) == [
        "--archives after --: rmqd spark submit sets it; use spark.archives in the group's spark.conf",
        "--deploy-mode after --: rmqd spark submit sets it; use the option --deploy-mode before --",
    ]


def test_a_group_that_is_not_on_spark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"groups\.shop\.engine: local does not run on Spark; expected spark"):
        load_spec(config_file(tmp_path), "shop", ())
    with pytest.raises(ConfigError, match="unknown group male; expected one of the groups on Spark: mailer"):
        load_spec(config_file(tmp_path), "male", ())
    assert load_spec(config_file(tmp_path), "", ()).name == "mailer"


def test_dry_run_shows_the_command_line_and_runs_nothing(tmp_path: Path) -> None:
    path = config_file(tmp_path)

    ended = rmqd(
        "spark", "submit", "mailer", "-c", str(path), "--dry-run", "--spark-home", str(spark_home(tmp_path)),
        "--", "--executor-memory", "2g",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"{spark_home(tmp_path)}/bin/spark-submit --master {STANDALONE} ")
    assert " --executor-memory 2g " in ended.out


def test_the_option_master_replaces_the_configured_one(tmp_path: Path) -> None:
    """Dependent settings also change, because executors on other machines must reach the driver."""
    path = config_file(tmp_path, master="local[2,4]")

    ended = rmqd("spark", "submit", "mailer", "-c", path, "--dry-run", "--master", "spark://elsewhere:7077")

    assert "--master spark://elsewhere:7077 " in ended.out, ended.err
    assert "127.0.0.1" not in ended.out


def test_a_refused_submission_exits_with_78(tmp_path: Path) -> None:
    ended = rmqd("spark", "submit", "mailer", "-c", config_file(tmp_path), "--master", "local[2]")

    assert (ended.code, ended.out) == (78, "")
    assert ended.err.startswith("groups.mailer.spark.master: local[2] is only this machine")


def spark_home(folder: Path) -> Path:
    """A Spark whose spark-submit only has to exist."""
    program = folder / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return folder / "spark"
