"""Kills: two groups on Spark drain a topic while drivers, executors and the broker are killed -9 at random moments.

One group has a handler that keeps a ledger, the other archives to Parquet. Nothing may be lost. A reader without Spark
must find each message once in the archive. The broker's offsets must never be ahead of the checkpoint. If the broker
has a slave, the slave lags behind, and serves alone whenever the broker is killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from rmqd.errors import RmqdError
from rmqd.spark.engine.checkpoint import read_end_offsets
from rmqd.wire.message_queue import MessageQueue
from tests.integration.rmqd_process import TOP, RmqdProcess, ledger_group
from tests.nightly.campaigns.lagging_slave import LaggingSlave
from tests.nightly.campaigns.sending import send_numbered
from tests.nightly.campaigns.verdict import Handlings
from tests.rocketmq import ClusterError, RealCluster, ledger, offsets
from tests.spark.local_folder import LocalFolder
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.nightly.spark.standalone_cluster import StandaloneCluster

HANDLING, ARCHIVING = "kills-handling", "kills-archiving"
QUEUES: Final = 8
DRIVER, EXECUTOR, BROKER = "driver", "executor", "broker"
BEGIN_SECONDS: Final = 600.0  # Spark starts in 10 s, and in minutes on a busy machine
DRAIN_SECONDS: Final = 600.0
POLL_SECONDS: Final = 0.3
BACKEND: Final = b"CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class KillsPlan:
    """A run: the messages to drain, the victims, and the pauses between kills."""

    seed: int
    messages: int
    victims: Sequence[str]
    calm_seconds: tuple[float, float] = (0.0, 6.0)
    handler_seconds: float = 0.01
    archive_batch: int = 3000
    archives: bool = True


@dataclass(slots=True)
class KillsResult:
    """The result of a run."""

    plan: KillsPlan
    killed: list[str]
    lost: list[str]
    repeated: int
    """The number of second and later attempts."""
    archived: Counter[str]
    """The number of rows for each key in the archive."""
    ahead: list[str]
    looks: int
    generations: dict[str, int]
    lag: dict[str, int]
    seconds: float
    problems: list[str] = field(default_factory=list)

    @property
    def missing_in_archive(self) -> int:
        """The number of messages missing in the archive."""
        return self.plan.messages - len(self.archived) if self.plan.archives else 0

    @property
    def twice_in_archive(self) -> int:
        """The number of surplus rows in the archive."""
        return self.archived.total() - len(self.archived)

    @property
    def passed(self) -> bool:
        """Whether the run kept all promises."""
        wrong = self.lost or self.missing_in_archive or self.twice_in_archive or self.ahead or self.problems
        is_whole = len(self.killed) == len(self.plan.victims) and not any(self.lag.values())
        return not wrong and is_whole and all(number == 1 for number in self.generations.values())

    def report(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(Counter(self.killed).items()))
        lines = [
            f"spark_kills, seed {self.plan.seed}, {self.seconds:.0f} s: {self.plan.messages} messages, killed {counts}",
            f"lost {len(self.lost)}{''.join(f' {key}' for key in self.lost[:10])}; handled again {self.repeated}; "
            f"not committed at the end {self.lag}; checkpoint generations {self.generations}",
            f"archive: missing {self.missing_in_archive}, twice {self.twice_in_archive}",
            f"offsets ahead of the checkpoint: {len(self.ahead)} in {self.looks} looks",
        ]
        return "\n".join([*lines, *(f"  {text}" for text in (*self.ahead[:5], *self.problems[:5]))])

    def cells(self) -> list[object]:
        """The row of docs/proof/campaigns.md."""
        counts = Counter(what.partition(" ")[0] for what in self.killed)
        return [
            self.plan.seed,
            self.plan.messages,
            ", ".join(str(counts[what]) for what in (DRIVER, EXECUTOR, BROKER)),
            f"{self.seconds:.0f}",
            len(self.lost),
            self.repeated,
            f"{self.missing_in_archive}, {self.twice_in_archive}",
            f"{len(self.ahead)} of {self.looks}",
            "; ".join(self.problems) or "none",
        ]


class Kills:
    """One run in a directory. A new start with the same directory continues with the remaining kills."""

    def __init__(
        self, plan: KillsPlan, cluster: RealCluster, directory: Path, spark: StandaloneCluster | None = None
    ) -> None:
        """Without a Spark cluster the groups run in `local[2,4]`, which has no executors to kill."""
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._spark = spark
        self._slave = LaggingSlave(cluster)
        self._random = random.Random(plan.seed)
        self._ledger = self._directory / "ledger"
        self._killed = self._directory / "killed"
        self._groups = [HANDLING, ARCHIVING] if plan.archives else [HANDLING]

    def run(self) -> KillsResult:
        """Send all messages, drain them during the kills, and judge."""
        begin = time.monotonic()
        topic = self._sent_topic()
        problems: list[str] = []
        daemon = RmqdProcess(self._directory / "daemon", self._cluster.nameserver, self._config(topic))
        with Watch(self._cluster, self._directory, topic, self._groups) as watch, daemon:
            for victim in self._victims():
                self._await_progress(daemon)
                time.sleep(self._random.uniform(*self._plan.calm_seconds))
                if self._is_drained(topic):
                    problems.append("all was drained before everybody had been killed")
                    break
                self._kill(victim, daemon)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: self._is_drained(topic), "all is handled and committed", DRAIN_SECONDS)
            status, _ = daemon.terminate(60)
            if status:
                problems.append(f"rmqd ended with {status}")
        return self._result(topic, watch, problems, time.monotonic() - begin)

    def _victims(self) -> list[str]:
        victims = list(self._plan.victims)
        self._random.shuffle(victims)
        done = self._killed_so_far()
        for past in done:
            with contextlib.suppress(ValueError):
                victims.remove(past.partition(" ")[0])
        return victims

    def _sent_topic(self) -> str:
        """Return a topic with all messages. An incomplete topic of an interrupted run is not used."""
        done = self._directory / "topic"
        if not done.exists():
            topic = f"kills-{time.time_ns() // 1_000_000}"
            self._cluster.create_topic(topic, QUEUES)
            copied = self._plan.messages // 20 if self._slave.is_there else 0
            if copied:
                send_numbered(self._cluster.nameserver, topic, copied)
                self._slave.leave_behind(topic, QUEUES)
            send_numbered(self._cluster.nameserver, topic, self._plan.messages, copied)
            done.write_text(topic)
        return done.read_text()

    def _config(self, topic: str) -> dict[str, dict[str, Any]]:
        plan = self._plan
        handling = ledger_group(
            topic,
            self._ledger,
            "handling",
            handler_options={"seconds": plan.handler_seconds},
            consume_from_where="first_offset",
            **self._on_spark(HANDLING),
        )
        archiving = {
            "subscriptions": {topic: "*"},
            "consume_from_where": "first_offset",
            "pipeline": {"plugin": "archive", "options": {"columns": ["keys", "queue_id", "queue_offset"]}},
            "sink": {"format": "parquet", "path": str(self._archive), "partition_by": ["date", "topic"]},
            **self._on_spark(ARCHIVING, max_offsets_per_trigger=plan.archive_batch),
        }
        groups = {HANDLING: handling, ARCHIVING: archiving}
        return {name: groups[name] for name in self._groups}

    def _on_spark(self, group: str, **more: object) -> dict[str, Any]:
        spark: dict[str, Any] = {"master": "local[2,4]", "checkpoint": str(self._checkpoint(group)), **more}
        if self._spark is not None:
            spark["master"] = self._spark.master
            spark["conf"] = {
                "spark.cores.max": 1,
                "spark.executor.memory": "500m",
                "spark.executorEnv.PYTHONPATH": f"{TOP}:{TOP / 'handlers'}",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }
        return {"engine": "spark", "spark": spark}

    @property
    def _archive(self) -> Path:
        return self._directory / "archive"

    def _checkpoint(self, group: str) -> Path:
        return self._directory / "checkpoints" / group

    # --- killing

    def _await_progress(self, daemon: RmqdProcess) -> None:
        """Wait until each group with remaining messages has made progress."""
        before = {group: self._progress(group) for group in self._groups}

        def moved() -> bool:
            assert daemon.running, daemon.tail()
            return all(self._progress(group) > before[group] or self._has_all(group) for group in self._groups)

        wait_until(moved, "both groups have gone on", BEGIN_SECONDS)

    def _progress(self, group: str) -> int:
        return sum(done_of(self._directory, group).values())

    def _has_all(self, group: str) -> bool:
        return self._progress(group) >= self._plan.messages

    def _kill(self, victim: str, daemon: RmqdProcess) -> None:
        if victim == BROKER:
            what = BROKER
            if self._slave.is_there:
                self._slave.serve_alone(self._random.uniform(3.0, 12.0))
            else:
                self._cluster.down([self._cluster.broker], now=True)
                time.sleep(self._random.uniform(0.0, 3.0))
                self._cluster.up([self._cluster.broker])
        elif victim == DRIVER:
            group = self._random.choice(self._groups)
            pid = next(e["pid"] for e in reversed(daemon.events("spark.driver_started")) if e["group"] == group)
            java = [child for child in children_of(pid) if b"java" in command_of(child)]
            is_java = bool(java) and self._random.random() < 0.5
            what = f"{DRIVER} of {group}{', its JVM' if is_java else ''}"
            kill(java[0] if is_java else pid)
        else:
            assert self._spark is not None
            pids = wait_until(lambda: list(self._executors()), "there is an executor", BEGIN_SECONDS)
            what = EXECUTOR
            kill(self._random.choice(pids))
        with self._killed.open("a") as file:
            file.write(what + "\n")

    def _executors(self) -> Iterator[int]:
        assert self._spark is not None
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and BACKEND in command_of(int(process.name)):
                with contextlib.suppress(OSError):
                    if self._spark.work_folder(0).parent in (process / "cwd").resolve().parents:
                        yield int(process.name)

    def _killed_so_far(self) -> list[str]:
        return self._killed.read_text().splitlines() if self._killed.exists() else []

    # --- the end

    def _is_drained(self, topic: str) -> bool:
        return all(map(self._has_all, self._groups)) and not any(self._lags(topic).values())

    def _lags(self, topic: str) -> dict[str, int]:
        return {group: offsets.lag(self._cluster, group, topic) for group in self._groups}

    def _result(self, topic: str, watch: Watch, problems: list[str], seconds: float) -> KillsResult:
        entries = ledger.read(self._ledger)
        handlings = Handlings(entries)
        wanted = {f"m{number}" for number in range(self._plan.messages)}
        return KillsResult(
            plan=self._plan,
            killed=self._killed_so_far(),
            lost=handlings.lost(wanted),
            repeated=sum(1 for _ in handlings.again()),
            archived=keys_in(self._archive) if self._plan.archives else Counter(),
            ahead=watch.ahead,
            looks=watch.looks,
            generations={group: last_generation(self._directory, group) for group in self._groups},
            lag=self._lags(topic),
            seconds=seconds,
            problems=problems,
        )


class Watch:
    """Compares the groups' offsets at the broker with their checkpoints several times a second."""

    def __init__(self, cluster: RealCluster, directory: Path, topic: str, groups: Sequence[str]) -> None:
        self.ahead: list[str] = []
        self.looks = 0
        self._cluster = cluster
        self._directory = directory
        self._topic = topic
        self._groups = groups
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch of the offsets")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            for group in self._groups:
                with contextlib.suppress(ClusterError, OSError, RmqdError):  # a process was just killed
                    self._look(group)

    def _look(self, group: str) -> None:
        stored = offsets.committed(self._cluster, group, self._topic)
        done = done_of(self._directory, group)  # read after the offsets, because a commit follows its checkpoint
        self.looks += 1
        for queue, offset in stored.items():
            known = done.get(MessageQueue(self._topic, queue.broker, queue.queue_id), 0)
            if offset > known:
                self.ahead.append(f"{group}: {queue} is committed at {offset}, and done as far as {known}")


def last_generation(directory: Path, group: str) -> int:
    """Return the number of a group's last checkpoint generation; 0 if there is none."""
    names = [path.name for path in (directory / "checkpoints" / group).glob("generation-*")]
    return max((int(name.rpartition("-")[2]) for name in names), default=0)


def done_of(directory: Path, group: str) -> dict[MessageQueue, int]:
    """Return the offsets in a group's checkpoint."""
    number = last_generation(directory, group)
    if not number:
        return {}
    folder = LocalFolder(directory / "checkpoints" / group)
    return dict(read_end_offsets(folder, f"generation-{number:06}/checkpoint", None))


def keys_in(archive: Path) -> Counter[str]:
    """Count each key in the archive as a reader of all Parquet files in the folder does."""
    from pyarrow import dataset  # type: ignore[import-untyped]

    table = dataset.dataset(str(archive), format="parquet", partitioning="hive").to_table(columns=["keys"])
    return Counter(table.column("keys").to_pylist())


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def command_of(pid: int) -> bytes:
    """Return the command line of a process; empty if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def kill(pid: int) -> None:
    """Send SIGKILL. A process that has ended is not an error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
