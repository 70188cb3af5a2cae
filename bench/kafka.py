"""A single-node Kafka on loopback, and Spark's own source reading from it, for the comparison with that.

The connector is of PySpark 4.2.0, the newest that Maven Central has one for, so that Spark lives in a virtual
environment of its own. All is fetched once, to `~/.cache/rmqd` (XDG_CACHE_HOME).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.spark_session import MASTER, SETTINGS
from tests.rocketmq.fetch import ATTEMPTS, find_java, locked, say
from tests.rocketmq.fetch import home as rocketmq_home

PYSPARK = "4.2.0"
HERE = Path(__file__).resolve().parent / "peers" / "kafka"
TOPIC = "bench"
HEAP = "1g"
START_SECONDS = 60.0
ANSWER_SECONDS = 600.0
# what Spark does not bring itself
CONNECTOR_JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class KafkaError(Exception):
    """Kafka, or Spark beside it, cannot be had or does not do its part."""


def home() -> Path:
    """Where all of this is kept."""
    return rocketmq_home().parent / f"bench-kafka-{PYSPARK}"


def prepare() -> None:
    """Fetch what is missing: PySpark (430 MB) by pip, Kafka and the connector (70 MB) by Maven. Raises KafkaError."""
    with locked(home() / ".lock"):
        if not (home() / "venv" / ".complete").exists():
            say(f"installing PySpark {PYSPARK} into {home()} (430 MB, once)")
            _make_venv(home() / "venv")
        for profile in ("broker", "connector"):
            if not (home() / profile / ".complete").exists():
                say(f"fetching the jars of Kafka's {profile} into {home()} (once)")
                _copy_jars(profile)


@dataclass(frozen=True, slots=True)
class SparkOnKafka:
    """A Kafka and a Spark session beside it, each in a process of its own."""

    broker: subprocess.Popen[bytes]
    reader: subprocess.Popen[str]
    errors: Path

    @property
    def pids(self) -> list[int]:
        """Of both, and of the reader's JVM."""
        children = Path(f"/proc/{self.reader.pid}/task/{self.reader.pid}/children")
        return [self.broker.pid, self.reader.pid, *map(int, children.read_text().split())]

    def fill(self, records: int, size_bytes: int) -> None:
        """Store that many records of a value alone. Raises KafkaError."""
        self._ask({"do": "fill", "records": records, "bytes": size_bytes})

    def read(self) -> float:
        """Seconds that Spark takes to read the topic whole, planning included. Raises KafkaError."""
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
    """Start both for the time of the block, the topic with so many partitions. Raises KafkaError."""
    with tempfile.TemporaryDirectory(prefix="rmqd-kafka-") as name, contextlib.ExitStack() as ending:
        folder = Path(name)
        ports = _free_ports(2)
        settings = folder / "server.properties"
        settings.write_text(
            PROPERTIES.format(broker=ports[0], controller=ports[1], folder=folder, partitions=partitions)
        )
        log = ending.enter_context((folder / "broker.log").open("w"))
        _java(log, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(settings))
        broker = subprocess.Popen(_java_command("kafka.Kafka", str(settings)), stdout=log, stderr=log, cwd=folder)
        ending.callback(_end, broker)
        _await_port(broker, ports[0], folder / "broker.log")
        errors = ending.enter_context((folder / "spark.log").open("w"))
        reader = subprocess.Popen(
            _reader_command(ports[0], partitions), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True, cwd=folder, env=_environment(),
        )  # fmt: skip
        ending.callback(_end, reader)
        yield SparkOnKafka(broker, reader, folder / "spark.log")


def _reader_command(port: int, partitions: int) -> list[str]:
    jars = [path for path in sorted((home() / "connector").glob("*.jar")) if path.name.startswith(CONNECTOR_JARS)]
    config = {**SETTINGS, "spark.master": MASTER, "spark.jars": ",".join(map(str, jars))}
    program = home() / "venv" / "bin" / "python"
    return [str(program), str(HERE / "reader.py"), f"127.0.0.1:{port}", TOPIC, str(partitions), json.dumps(config)]


def _environment() -> dict[str, str]:
    """Without what would lead to another Spark, or another Python."""
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


def _copy_jars(profile: str) -> None:
    maven = shutil.which("mvn")
    if not maven:
        raise KafkaError("mvn is not on PATH; Maven fetches Kafka once")
    target = home() / profile
    problem: str | None = ""
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(target, ignore_errors=True)
        problem = _run(
            [
                *(maven, "-q", "-B", "-Dstyle.color=never", "-f", str(HERE / "pom.xml"), f"-P{profile}"),
                *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"),
            ]
        )
        if problem is None:
            (target / ".complete").touch()
            return
        say(f"attempt {attempt} to fetch the jars failed")
        time.sleep(3 * attempt)  # a mirror that refuses is asked again a little later
    raise KafkaError(f"Maven could not copy the jars of Kafka's {profile}:\n{problem}")


def _run(command: list[str]) -> str | None:
    """Run to the end; the end of what it said if it failed."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return None if done.returncode == 0 else "\n".join(done.stdout.splitlines()[-15:])


def _java_command(main_class: str, *arguments: str) -> list[str]:
    jars = ":".join(map(str, sorted((home() / "broker").glob("*.jar"))))
    return [
        find_java(),
        f"-Xmx{HEAP}",
        f"-Xms{HEAP}",
        "-Djava.net.preferIPv4Stack=true",
        "-cp",
        jars,
        main_class,
        *arguments,
    ]


def _java(log: IO[str], main_class: str, *arguments: str) -> None:
    done = subprocess.run(_java_command(main_class, *arguments), stdout=log, stderr=log, check=False)
    if done.returncode:
        log.flush()
        raise KafkaError(f"{main_class} ended with {done.returncode}:\n{Path(log.name).read_text()[-2000:]}")


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise KafkaError(f"Kafka does not listen on port {port}:\n{log.read_text(errors='replace')[-2000:]}")


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()  # the reader ends by itself, and takes its JVM along
    else:
        process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
