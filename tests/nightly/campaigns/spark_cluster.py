"""`rmqd spark submit` on a standalone cluster whose workers are killed and restarted while messages arrive.

The handler is a module in the working directory. Executors find it only in the submitted archive.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmqd.errors import RmqdError
from tests.nightly.spark.standalone_cluster import StandaloneCluster
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.fixtures import SHORT_LIFE

GROUP: Final = "mailer"
TOPIC: Final = "orders"
QUEUES: Final = 4
WORKERS: Final = 2
BURST: Final = 25
START_SECONDS: Final = 300.0  # the archive is packed, sent and unpacked twice, on a machine that may be busy
STALL_SECONDS: Final = 120.0
END_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1
HANDLER: Final = """
import os


def handle(batch, options):
    lines = "".join(f"{one.queue_id} {one.queue_offset} {__file__}\\n" for one in batch)
    file = os.open(options["path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, lines.encode())
    finally:
        os.close(file)
"""
CONFIG: Final = """
nameserver: {nameserver}
state_dir: {folder}/state
groups:
  {group}:
    engine: spark
    subscriptions: {{{topic}: "*"}}
    consume_from_where: first_offset
    consume_message_batch_max_size: 8
    handler: {{plugin: "ledger_of_cluster:handle", options: {{path: {folder}/ledger}}}}
    spark:
      master: {master}
      conf:
        spark.executor.cores: 1
        spark.executor.memory: 512m
        spark.network.timeout: 60s
        spark.driver.extraJavaOptions: "{java_options}"
        spark.executor.extraJavaOptions: "{java_options}"
"""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The size of a run."""

    seed: int
    messages: int
    kills: int
    per_second: int = 200


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """The results of a run, from the handler's ledger."""

    plan: ClusterPlan
    kills: int
    executors: int
    """The number of executors that handled messages."""
    lost: int
    again: int
    """The number of repeated handlings."""
    committed: int
    exit_code: int
    first_seconds: float
    """The time from the command to the first handled message."""
    stop_seconds: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is lost, enough executors took part, and the group ended in order with all commits."""
        return (
            (self.lost, self.committed, self.exit_code) == (0, self.plan.messages, 0)
            and self.kills == self.plan.kills
            and self.executors >= WORKERS
        )

    def report(self) -> str:
        return (
            f"seed {self.plan.seed}: {self.plan.messages} messages, {self.kills} workers killed, {self.executors} "
            f"executors took part; {self.lost} lost, {self.again} handled again, {self.committed} committed; exit code "
            f"{self.exit_code}; first message after {self.first_seconds:.0f} s, stop in {self.stop_seconds:.1f} s, "
            f"{self.seconds:.0f} s in all"
        )

    def cells(self) -> list[object]:
        """Return the row of the campaign's table."""
        plan = self.plan
        times = (f"{self.first_seconds:.0f}", f"{self.stop_seconds:.1f}", f"{self.seconds:.0f}")
        return [plan.seed, plan.messages, self.kills, self.executors, self.lost, self.again, *times]


class SparkCluster:
    """One run in a directory."""

    def __init__(self, plan: ClusterPlan, directory: Path) -> None:
        self._plan = plan
        self._folder = directory
        self._random = random.Random(plan.seed)
        self._handled: Counter[tuple[int, int]] = Counter()
        self._executors: set[str] = set()
        self._read = 0

    def run(self) -> ClusterResult:
        """Run the campaign. Raises RmqdError if the group stalls or ends."""
        self._folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        broker_folder, spark_folder = self._folder / "broker", self._folder / "spark"
        with EmbeddedBroker(broker_folder) as broker, StandaloneCluster(spark_folder, WORKERS) as cluster:
            broker.create_topic(TOPIC, QUEUES)
            submitted = self._submit(broker.nameserver, cluster.master)
            asked = time.monotonic()
            sender = threading.Thread(target=self._send, args=(broker,), name="sender", daemon=True)
            try:
                sender.start()
                self._await(submitted, lambda: len(self._handled) > 0, START_SECONDS)
                first_seconds = time.monotonic() - asked
                kills = self._kill_workers(submitted, cluster)
                self._await(submitted, lambda: len(self._handled) == self._plan.messages, STALL_SECONDS)
                stopped = time.monotonic()
                submitted.send_signal(signal.SIGTERM)
                code = submitted.wait(END_SECONDS)
                stop_seconds = time.monotonic() - stopped
            finally:
                submitted.kill()
                submitted.wait()
            sender.join()
            committed = sum(broker.offsets(GROUP, TOPIC).values())
        self._look()
        return ClusterResult(
            plan=self._plan,
            kills=kills,
            executors=len(self._executors),
            lost=self._plan.messages - len(self._handled),
            again=self._handled.total() - len(self._handled),
            committed=committed,
            exit_code=code,
            first_seconds=first_seconds,
            stop_seconds=stop_seconds,
            seconds=time.monotonic() - began,
        )

    def _submit(self, nameserver: str, master: str) -> subprocess.Popen[bytes]:
        (self._folder / "ledger_of_cluster.py").write_text(HANDLER)
        config = self._folder / "rmqd.yaml"
        config.write_text(
            CONFIG.format(
                nameserver=nameserver,
                folder=self._folder,
                group=GROUP,
                topic=TOPIC,
                master=master,
                java_options=SHORT_LIFE,
            )
        )
        command = [sys.executable, "-m", "rmqd", "spark", "submit", GROUP, "--config", str(config)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with (self._folder / "submit.log").open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def _send(self, broker: EmbeddedBroker) -> None:
        sent = 0
        while sent < self._plan.messages:
            count = min(BURST, self._plan.messages - sent)
            broker.send(TOPIC, *(str(sent + number) for number in range(count)), queue_id=sent // BURST % QUEUES)
            sent += count
            time.sleep(count / self._plan.per_second)

    def _kill_workers(self, submitted: subprocess.Popen[bytes], cluster: StandaloneCluster) -> int:
        """Kill one worker at a time, spread over the messages. Restart it once the other one has handled a message."""
        killed = 0
        for number in range(self._plan.kills):
            step = self._plan.messages // (self._plan.kills + 1)
            wanted = int(step * (number + self._random.uniform(0.5, 1.0)))
            self._await(submitted, lambda wanted=wanted: len(self._handled) >= wanted, STALL_SECONDS)  # type: ignore[misc]
            victim = self._random.randrange(WORKERS)
            cluster.kill_worker(victim)
            killed += 1
            before = len(self._handled)
            if before < self._plan.messages:
                self._await(submitted, lambda before=before: len(self._handled) > before, STALL_SECONDS)  # type: ignore[misc]
            cluster.start_worker(victim)
        return killed

    def _await(self, submitted: subprocess.Popen[bytes], done: Callable[[], bool], patience_seconds: float) -> None:
        """Wait for a condition. The patience starts again with each handled message."""
        seen, deadline = len(self._handled), time.monotonic() + patience_seconds
        while not done():
            if submitted.poll() is not None:
                raise RmqdError(f"the group ended by itself, exit code {submitted.returncode}:\n{self._log()}")
            if len(self._handled) > seen:
                seen, deadline = len(self._handled), time.monotonic() + patience_seconds
            if time.monotonic() > deadline:
                raise RmqdError(f"nothing was handled for {patience_seconds:g} s:\n{self._log()}")
            time.sleep(POLL_SECONDS)
            self._look()

    def _look(self) -> None:
        """Read the new lines of the ledger."""
        path = self._folder / "ledger"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.decode().splitlines():
            queue, offset, module = line.split(" ", 2)
            self._handled[int(queue), int(offset)] += 1
            self._executors.add(module)

    def _log(self) -> str:
        return (self._folder / "submit.log").read_text(errors="replace")[-3000:]
