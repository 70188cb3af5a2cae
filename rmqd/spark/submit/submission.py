"""Submits a group to a Spark cluster: writes files for spark-submit, and runs and stops spark-submit.

Executors start Python with the launcher of the packed environment, whose path is relative to the working directory. The
driver starts Python processes for Python sources with the same path. So the driver's working directory needs a launcher
too. In deploy mode cluster, Spark unpacks the archive in this directory. For a driver on this machine,
`write_submit_files` writes a launcher.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rmqd.config.model.spark_model import SparkConfig
from rmqd.errors import ConfigError, ExitCode, RmqdError, install_command
from rmqd.spark.session.group_spec import GroupSpec
from rmqd.spark.submit.packed_files import ENVIRONMENT_FOLDER, ENVIRONMENT_PYTHON

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_MAIN_PROGRAM: Final = (
    "import sys\n\nfrom rmqd.spark.submit.submitted import main\n\nif __name__ == '__main__':\n    sys.exit(main())\n"
)
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def find_spark_submit(spark_home: str = "") -> str:
    """Return the path of spark-submit in `spark_home`, SPARK_HOME, or PySpark. Raises RmqdError if it is missing."""
    for source, home in (("--spark-home", spark_home), ("SPARK_HOME", os.environ.get("SPARK_HOME", ""))):
        if home:
            program = Path(home).absolute() / "bin" / "spark-submit"
            if not os.access(program, os.X_OK):
                raise RmqdError(f"{source} is {home}, but there is no program {program}")
            return str(program)
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise RmqdError(f"there is no spark-submit; run {install_command('spark')}, or set SPARK_HOME")
    return str(Path(found.origin).parent / "bin" / "spark-submit")


def write_submit_files(submission: SparkSubmission, folder: Path) -> None:
    """Write the files that `SparkSubmission.command` names. Only this user can read them: they contain passwords."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / MAIN_FILE).write_text(_MAIN_PROGRAM)
    _write_private(folder / SPEC_FILE, pickle.dumps(submission.spec))
    if secrets := submission.secret_conf():
        lines = [f"{key} {_escaped(value)}\n" for key, value in sorted(secrets.items())]
        _write_private(folder / SECRET_PROPERTIES_FILE, "".join(lines).encode())
    if submission.runs_on_this_machine and submission.environment:
        launcher = folder / ENVIRONMENT_FOLDER / "bin" / "python"
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        launcher.chmod(0o755)


def run_spark_submit(submission: SparkSubmission, spark_submit: str, folder: Path) -> int:
    """Run spark-submit until it ends, and return its exit code.

    A stop signal to this process stops the group gracefully; a second signal kills it. The JVM reports failure after a
    signal. So if a driver on this machine has written its own exit code, return the driver's code. Raises OSError.
    """
    with (
        subprocess.Popen(
            submission.command(spark_submit, folder),
            cwd=folder,
            start_new_session=True,  # Ctrl-C in a terminal should reach only this process, which forwards the signal
            preexec_fn=_end_with_parent,
            stdin=subprocess.DEVNULL,
        ) as process,
        _forwarding_signals(process),
    ):
        code = process.wait()
    if (folder / EXIT_CODE_FILE).exists():
        return int((folder / EXIT_CODE_FILE).read_text())
    return code if code >= 0 else ExitCode.FAILURE


@contextmanager
def _forwarding_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    received: list[int] = []

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) == 1:
            process.send_signal(signal.SIGTERM)
        else:
            os.killpg(process.pid, signal.SIGKILL)

    former = {number: signal.signal(number, forward) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """Called in the child process before it starts spark-submit. On Linux, let the child get SIGTERM if rmqd dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _escaped(value: str) -> str:
    """Escape a value for Java's properties files."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


CLIENT_MODE: Final = "client"
CLUSTER_MODE: Final = "cluster"
DEPLOY_MODES: Final = (CLIENT_MODE, CLUSTER_MODE)
DEPLOY_MODE_CONF: Final = "spark.submit.deployMode"
NO_ENVIRONMENT_WORD: Final = "none"
UPLOAD_PATH_CONF: Final = "spark.kubernetes.file.upload.path"
IMAGE_CONF: Final = "spark.kubernetes.container.image"
IMAGE_MAIN: Final = "local:///opt/rmqd/rmqd_group.py"
"""The URL of the main program in the image that deploy/spark/Dockerfile builds."""
IMAGE_PYTHON: Final = "/opt/rmqd/bin/python"
MAIN_FILE: Final = "rmqd_group.py"
SPEC_FILE: Final = "rmqd_group.spec"
EXIT_CODE_FILE: Final = "ended"
SECRET_PROPERTIES_FILE: Final = "secret.properties"
ARCHIVES_CONF: Final = "spark.archives"
FILES_CONF: Final = "spark.files"
# Options of spark-submit that must not follow --, because they would override rmqd's options; and their replacements.
RESERVED_OPTIONS: Final = {
    "--master": "the option --master before --",
    "--deploy-mode": "the option --deploy-mode before --",
    "--archives": f"{ARCHIVES_CONF} in the group's spark.conf",
    "--files": f"{FILES_CONF} in the group's spark.conf",
    "--properties-file": "the group's spark.conf",
}
PATH_CONFS: Final = (ARCHIVES_CONF, FILES_CONF, "spark.jars", "spark.submit.pyFiles")
# The names of properties that Spark hides in its user interface, from Spark's default of `spark.redaction.regex`.
SECRET_NAME: Final = re.compile(r"(?i)secret|password|token|access[.]?key")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSubmission:
    spec: GroupSpec
    master: str
    deploy_mode: str
    conf: Mapping[str, str]
    """The properties of the session, including the group's `spark.conf`."""
    environment: str
    """The path or URL of the packed environment's archive; empty if rmqd is installed on all nodes."""
    spark_submit_options: Sequence[str] = ()
    """Additional options for spark-submit, from the command line after `--`."""

    @property
    def runs_on_this_machine(self) -> bool:
        """Whether the driver runs on this machine, as in deploy mode client."""
        return self.deploy_mode == CLIENT_MODE

    @property
    def is_on_kubernetes(self) -> bool:
        return self.master.startswith("k8s://")

    def command(self, spark_submit: str, folder: Path) -> list[str]:
        """Return the command line of spark-submit. It names files that `write_submit_files` writes to `folder`."""
        return [spark_submit, *self._options(folder), *self.spark_submit_options, *self._program(folder)]

    def public_conf(self) -> dict[str, str]:
        """Return the properties without secrets, for the command line, which every user of this machine can read."""
        return {key: value for key, value in self._all_conf().items() if not SECRET_NAME.search(key)}

    def secret_conf(self) -> dict[str, str]:
        """Return the properties whose names match SECRET_NAME, for a private file."""
        return {key: value for key, value in self._all_conf().items() if SECRET_NAME.search(key)}

    def _all_conf(self) -> dict[str, str]:
        conf = {key: value for key, value in self.conf.items() if key not in (ARCHIVES_CONF, FILES_CONF)}
        if self.environment:
            conf.setdefault("spark.pyspark.python", ENVIRONMENT_PYTHON)
        elif self.is_on_kubernetes:
            conf.setdefault("spark.pyspark.python", IMAGE_PYTHON)
        if self.runs_on_this_machine and not self.is_on_kubernetes:
            conf.setdefault("spark.pyspark.driver.python", sys.executable)
        return conf

    def _options(self, folder: Path) -> Iterator[str]:
        yield from ("--master", self.master, "--deploy-mode", self.deploy_mode, "--name", f"rmqd {self.spec.name}")
        environment = f"{self.environment}#{ENVIRONMENT_FOLDER}" if self.environment else ""
        spec = "" if self.runs_on_this_machine else str(folder / SPEC_FILE)
        for option, ours, key in (("--archives", environment, ARCHIVES_CONF), ("--files", spec, FILES_CONF)):
            if found := ",".join(filter(None, (ours, self.conf.get(key, "")))):
                yield from (option, found)
        if self.secret_conf():
            yield from ("--properties-file", str(folder / SECRET_PROPERTIES_FILE), "--load-spark-defaults")
        for key, value in sorted(self.public_conf().items()):
            yield from ("--conf", f"{key}={value}")

    def _program(self, folder: Path) -> Iterator[str]:
        if self.runs_on_this_machine:
            yield from (
                str(folder / MAIN_FILE),
                "--order",
                str(folder / SPEC_FILE),
                "--ended",
                str(folder / EXIT_CODE_FILE),
            )
        else:
            yield IMAGE_MAIN if self.is_on_kubernetes else str(folder / MAIN_FILE)
            yield from ("--order", SPEC_FILE)


def make_submission(
    spec: GroupSpec,
    conf: Mapping[str, str],
    *,
    deploy_mode: str = "",
    environment: str = "",
    passed: Sequence[str] = (),
) -> SparkSubmission:
    """Return the checked submission of a group; `conf` are the session's properties. Raises ConfigError."""
    settings = spec.spark
    submission = SparkSubmission(
        spec=spec,
        master=settings.master,
        deploy_mode=deploy_mode or conf.get(DEPLOY_MODE_CONF, CLIENT_MODE),
        conf={key: _placed(one) if key in PATH_CONFS else one for key, one in conf.items() if key != DEPLOY_MODE_CONF},
        environment="" if environment == NO_ENVIRONMENT_WORD else _placed(environment),
        spark_submit_options=[_placed(one) for one in passed],
    )
    if problems := list(_problems(submission, settings)):
        raise ConfigError(list[object](problems))
    return submission


def _placed(value: str) -> str:
    """Make the existing paths in a comma-separated list absolute, because spark-submit runs in another folder."""
    return ",".join(os.path.abspath(one) if os.path.exists(one.partition("#")[0]) else one for one in value.split(","))


def _problems(submission: SparkSubmission, settings: SparkConfig) -> Iterator[str]:
    at = f"groups.{submission.spec.name}"
    master, is_here = submission.master, submission.runs_on_this_machine
    if submission.spec.settings.engine != "spark":
        yield f"{at}.engine: {submission.spec.settings.engine} does not run on Spark; expected spark"
        return
    if master.startswith("local"):
        yield (
            f"{at}.spark.master: {master} is only this machine; expected spark://HOST:7077, yarn or "
            f"k8s://URL, here or in --master; to run it on this machine, use rmqd spark run {submission.spec.name}"
        )
        return
    for option in submission.spark_submit_options:
        name = option.partition("=")[0]
        if name in RESERVED_OPTIONS:
            yield f"{name} after --: rmqd spark submit sets it; use {RESERVED_OPTIONS[name]}"
    if submission.deploy_mode not in DEPLOY_MODES:
        yield f"{at}.spark.conf.{DEPLOY_MODE_CONF}: {submission.deploy_mode!r}; expected {' | '.join(DEPLOY_MODES)}"
        return
    if master.startswith("spark://") and not is_here:
        yield (
            f"{at}.spark.master: a standalone cluster does not support deploy mode cluster for drivers in Python; "
            "expected deploy mode client, or a cluster of YARN or Kubernetes"
        )
    if not is_here and "://" not in settings.checkpoint:
        told = f"{settings.checkpoint} is" if settings.checkpoint else "missing, and the default is"
        yield (
            f"{at}.spark.checkpoint: {told} a folder of the driver's machine, and in deploy mode cluster each start "
            "may use another machine; expected a URL, such as s3a://bucket/checkpoints/ or hdfs:///checkpoints/"
        )
    if submission.is_on_kubernetes and IMAGE_CONF not in submission.conf:
        yield f"{at}.spark.conf.{IMAGE_CONF}: missing; expected the image of deploy/spark/Dockerfile, in your registry"
    if submission.is_on_kubernetes and not is_here and UPLOAD_PATH_CONF not in submission.conf:
        yield (
            f"{at}.spark.conf.{UPLOAD_PATH_CONF}: missing; expected a URL for passing the group's configuration to the "
            "driver, such as s3a://bucket/upload. deploy/spark/rmqd-group.yaml does not need it"
        )
