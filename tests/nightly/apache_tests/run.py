"""Runs the test classes in several JVMs at a time. Each JVM has its own cluster, because tests change its settings."""

from __future__ import annotations

import queue
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rmqd.broker.broker_settings import BrokerSettings
from tests.nightly.apache_tests import module
from tests.rocketmq import release
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.fetch import say
from tests.rocketmq.settings import CLUSTER_NAME
from tests.rocketmq.spec import ClusterSpec

CLASSES_PER_JVM = 4
SILENT_SECONDS = 300.0
"""A test that takes longer has failed. The tests themselves wait up to three minutes."""
POLL_SECONDS = 0.2

# The settings of the tests' own base class for its brokers, if they change behaviour.
SETTINGS = {
    "enableCalcFilterBitMap": "true",
    "enableConsumeQueueExt": "true",
    "appendAckAsync": "true",
    "appendCkAsync": "true",
    "recallMessageEnable": "true",
    "popConsumerKVServiceInit": "true",
    "loadBalancePollNameServerInterval": "500",
    "maxTransferCountOnMessageInMemory": "1024",
    "maxTransferCountOnMessageInDisk": "1024",
}


@dataclass(slots=True)
class Outcomes:
    """The outcome of each test, by "Class.test": empty if it passed, else the reason. Ignored tests have no outcome."""

    tests: dict[str, str] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)

    @property
    def done(self) -> set[str]:
        """The tests that need not run again."""
        return {*self.tests, *self.ignored}


def run(version: str, classes: Iterable[str], jobs: int) -> Outcomes:
    """Run the classes on clusters of the version (a release or `embedded`), `jobs` at a time."""
    wanted = list(classes)
    work: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for start in range(0, len(wanted), CLASSES_PER_JVM):
        work.put(wanted[start : start + CLASSES_PER_JVM])
    outcomes = Outcomes()
    module.class_path()
    with ThreadPoolExecutor(jobs) as workers:
        for worker in [workers.submit(_work, version, work, outcomes) for _ in range(jobs)]:
            worker.result()
    return outcomes


def _work(version: str, work: queue.SimpleQueue[list[str]], outcomes: Outcomes) -> None:
    embedded = version == release.EMBEDDED
    # a real RocketMQ accepts TLS by default
    settings = {name: value for name, value in SETTINGS.items() if not embedded or hasattr(BrokerSettings, name)}
    spec = ClusterSpec(version=version, tls=not embedded, settings=settings)
    with RealCluster.start(spec) as cluster:
        while True:
            try:
                classes = work.get_nowait()
            except queue.Empty:
                return
            _Jvm(cluster, classes, outcomes).run()


class _Jvm:
    """Runs some classes. If a test hangs, its JVM is killed, and the next JVM runs the remaining tests."""

    def __init__(self, cluster: RealCluster, classes: list[str], outcomes: Outcomes) -> None:
        self._cluster = cluster
        self._classes = classes
        self._all = outcomes
        self._here = Outcomes()
        self._planned: list[str] = []
        self._log = module.logs() / f"{classes[0].rsplit('.', 1)[1]}-{cluster.spec.version}.log"

    def run(self) -> None:
        """Run until each test of the classes has an outcome."""
        while not self._run_once():
            pass

    def _run_once(self) -> bool:
        with tempfile.TemporaryDirectory(prefix="rmqd-own-tests-") as name:
            directory = Path(name)
            done = directory / "done"
            done.write_text("".join(f"{test}\n" for test in sorted(self._here.done)))
            command = [
                *module.java(
                    f"-Duser.home={directory}",
                    f"-Djava.io.tmpdir={directory}",
                    f"-Dcluster.namesrv={self._cluster.nameservers}",
                    f"-Dcluster.name={CLUSTER_NAME}",
                    f"-Dcluster.broker={self._cluster.broker.address}",
                    f"-Dcluster.broker.name={self._cluster.broker.spec.broker_name}",
                ),
                *("RunTests", "run", str(directory / "report"), str(done), *self._classes),
            ]
            with self._log.open("a") as out:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
                try:
                    return self._follow(process, directory / "report")
                finally:
                    process.kill()
                    process.wait()

    def _follow(self, process: subprocess.Popen[bytes], report: Path) -> bool:
        """Read the JVM's report. Returns whether all tests are done. The running test failed if the JVM ends early."""
        running, broken = "", ""
        for event, *rest in _lines(process, report):
            if event == "planned" and rest[0] not in self._planned:
                self._planned.append(rest[0])
            elif event == "started":
                running = rest[0]
            elif event in ("passed", "failed"):
                self._finish(rest[0], rest[1] if event == "failed" else "")
                running = ""
            elif event == "ignored":
                self._here.ignored.add(rest[0])
                self._all.ignored.add(rest[0])
            elif event == "broken":
                broken = f"{rest[0].rsplit('.', 1)[1]}: {rest[1]}"
            elif event == "end":
                for test in self._planned:
                    if test not in self._here.done:
                        self._finish(test, broken or "did not run")
                return True
        if running:
            self._finish(running, f"took longer than {SILENT_SECONDS:g} s, or ended its JVM")
            return False
        say(f"a JVM ended early, between tests: {self._log}")
        for test in self._planned:
            if test not in self._here.done:
                self._finish(test, broken or "its JVM ended before it began")
        return True

    def _finish(self, test: str, why: str) -> None:
        self._here.tests[test] = self._all.tests[test] = why
        say(f"{'failed' if why else 'passed'} {test} {why[:200]}".rstrip())


def _lines(process: subprocess.Popen[bytes], report: Path) -> Iterator[list[str]]:
    """Yield the lines of a report as they are written, until the process ends or is silent for too long."""
    heard, position = time.monotonic(), 0
    while time.monotonic() - heard < SILENT_SECONDS:
        ended = process.poll() is not None
        text = report.read_text()[position:] if report.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        if complete:
            position += len(complete)
            heard = time.monotonic()
            yield from (line.split("\t") for line in complete.splitlines())
        elif ended:
            return
        else:
            time.sleep(POLL_SECONDS)
