"""A single-node Kafka on loopback, and Spark's own Kafka source, for comparison.

The newest connector on Maven Central is for PySpark 4.2.0, so this Spark has a separate virtual environment. Everything
is fetched once, to `~/.cache/rmqd` (XDG_CACHE_HOME).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.spark_session import MASTER, SETTINGS
from tests.rocketmq.fetch import find_java, locked, say
from tests.rocketmq.fetch import home as rocketmq_home
from tests.servers.jars import copy_jars
from tests.servers.kafka import KafkaServer, kafka_jars
from tests.servers.process import ServerMissing

PYSPARK = "4.2.0"
HERE = Path(__file__).resolve().parent / "peers" / "kafka"
TOPIC = "bench"
HEAP = "1g"
ANSWER_SECONDS = 600.0
# not part of Spark
CONNECTOR_JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


class KafkaError(Exception):
    """Kafka or its Spark is unavailable, or failed."""


def home() -> Path:
    """Return the folder of the fetched files."""
    return rocketmq_home().parent / f"bench-kafka-{PYSPARK}"


def prepare() -> None:
    """Fetch missing files: PySpark (430 MB) with pip, Kafka and the connector (70 MB) with Maven. Raises KafkaError."""
    with locked(home() / ".lock"):
        if not (home() / "venv" / ".complete").exists():
            say(f"installing PySpark {PYSPARK} into {home()} (430 MB, once)")
            _make_venv(home() / "venv")
    try:
        kafka_jars()
        _connector_jars()
    except ServerMissing as error:
        raise KafkaError(str(error)) from None


@dataclass(frozen=True, slots=True)
class SparkOnKafka:
    """A Kafka and a Spark session, each in a separate process."""

    broker: KafkaServer
    reader: subprocess.Popen[str]
    errors: Path

    @property
    def pids(self) -> list[int]:
        """The process ids of both, and of the reader's JVM."""
        children = Path(f"/proc/{self.reader.pid}/task/{self.reader.pid}/children")
        return [self.broker.pid, self.reader.pid, *map(int, children.read_text().split())]

    def fill(self, records: int, size_bytes: int) -> None:
        """Store `records` records with a value and no key. Raises KafkaError."""
        self._ask({"do": "fill", "records": records, "bytes": size_bytes})

    def read(self) -> float:
        """Read the whole topic with Spark. Returns the seconds, planning included. Raises KafkaError."""
        return float(self._ask({"do": "read"})["seconds"])

    def _ask(self, what: dict[str, object]) -> dict[str, float]:
        assert self.reader.stdin is not None
        assert self.reader.stdout is not None
        try:
            self.reader.stdin.write(json.dumps(what) + "\n")
            self.reader.stdin.flush()
            line = self.reader.stdout.readline()
        except OSError as error:
            line = str(error)
        try:
            answer: dict[str, float] = json.loads(line)
        except ValueError:
            tail = "\n".join(self.errors.read_text(errors="replace").splitlines()[-15:])
            raise KafkaError(f"Spark {PYSPARK} gave no answer to {what}:\n{tail}") from None
        return answer


@contextlib.contextmanager
def running(partitions: int) -> Iterator[SparkOnKafka]:
    """Run both during the block, with a topic of `partitions` partitions. Raises KafkaError."""
    with tempfile.TemporaryDirectory(prefix="rmqd-kafka-") as name, contextlib.ExitStack() as ending:
        folder = Path(name)
        try:
            broker = ending.enter_context(KafkaServer(partitions=partitions, heap=HEAP, jvm=()))
        except (ServerMissing, AssertionError) as error:
            raise KafkaError(str(error)) from None
        errors = ending.enter_context((folder / "spark.log").open("w"))
        reader = subprocess.Popen(
            _reader_command(broker.address, partitions), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True, cwd=folder, env=_environment(),
        )  # fmt: skip
        ending.callback(_end, reader)
        yield SparkOnKafka(broker, reader, folder / "spark.log")


def _connector_jars() -> list[Path]:
    return copy_jars(HERE / "pom.xml", home() / "connector", f"the connector of PySpark {PYSPARK} for Kafka")


def _reader_command(address: str, partitions: int) -> list[str]:
    jars = [path for path in _connector_jars() if path.name.startswith(CONNECTOR_JARS)]
    config = {**SETTINGS, "spark.master": MASTER, "spark.jars": ",".join(map(str, jars))}
    program = home() / "venv" / "bin" / "python"
    return [str(program), str(HERE / "reader.py"), address, TOPIC, str(partitions), json.dumps(config)]


def _environment() -> dict[str, str]:
    """Return the environment without variables that select another Spark or Python."""
    unwanted = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in unwanted}
    return {**environment, "JAVA_HOME": str(Path(find_java()).resolve().parent.parent)}


def _make_venv(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(target)],
        [
            str(target / "bin" / "python"),
            *"-m pip install --quiet --disable-pip-version-check".split(),
            f"pyspark=={PYSPARK}",
        ],
    ):
        if (problem := _run(command)) is not None:
            raise KafkaError(f"PySpark {PYSPARK} could not be installed:\n{problem}")
    (target / ".complete").touch()


def _run(command: list[str]) -> str | None:
    """Run a command. Returns the end of its output if it failed, otherwise None."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return None if done.returncode == 0 else "\n".join(done.stdout.splitlines()[-15:])


def _end(reader: subprocess.Popen[str]) -> None:
    assert reader.stdin is not None
    reader.stdin.close()  # the reader exits and ends its JVM
    try:
        reader.wait(20)
    except subprocess.TimeoutExpired:
        reader.kill()
        reader.wait()
