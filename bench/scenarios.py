"""The scenarios, and their runs, in which the contenders take turns."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import contenders, contest, traces
from bench.job import POP, TLS, TRACE, Figures, Job
from bench.machine import QUIET_SHARE, Usage, process_cpu_seconds, wait_until_quiet
from tests.rocketmq import ClusterSpec, RealCluster

QUEUES = 8
BODY_BYTES = 256
BROKER_HEAP = "1g"
TIMEOUT_SECONDS = 180.0

BROKER_LIMITS = {"maxTransferCountOnMessageInMemory": 32, "maxTransferBytesOnMessageInMemory": 262_144}
BROKER_SETTINGS = {"traceTopicEnable": "true"}  # otherwise the first traced run creates the topic, with eight queues
RAISED_LIMITS = {"maxTransferCountOnMessageInMemory": 1024, "maxTransferBytesOnMessageInMemory": 8 << 20}

PACED_RATE = 1000
PRELOADED = 800  # stored before a paced run: on an empty topic the Java client often receives nothing for 30 s
PACED_WARM_SECONDS = 5
SETTLE_SECONDS = 3.0
WARM_UP_DRAINS = 3
REPEATS = 2

SWITCHES = (TRACE, POP, TLS)
# Divisors of a drain's messages: traced messages are sent one by one, and popped ones cost the broker most.
TRACE_SHARE, POP_SHARE = 3, 6


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of drain, and its contenders."""

    name: str
    consume_batch: int
    pull_batch: int
    contenders: tuple[str, ...]
    limits_raised: bool = False
    paced: bool = False
    orderly: bool = False
    switch: str = ""


SCENARIOS = (
    Scenario("batch 1", 1, 32, contenders.DRAINING),
    Scenario("batch 32", 32, 32, contenders.DRAINING),
    Scenario("batch 1024", 1024, 1024, ("java", "rmqd", "raw"), limits_raised=True),
    Scenario("orderly 1", 1, 32, ("java", "go", "rmqd"), orderly=True),
    Scenario("orderly 32", 32, 32, ("java", "go", "rmqd"), orderly=True),
    Scenario("paced", 1, 32, ("java", "go", "rmqd", "floor"), paced=True),
    *(
        Scenario(f"{switch} {batch}", batch, 32, ("java", "rmqd"), switch=switch)
        for switch in SWITCHES
        for batch in (1, 32)
    ),
)


@dataclass(slots=True)
class Results:
    """Every run's figures, by scenario and contender, and the failures."""

    runs: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, scenario: str, contender: str, figures: Figures) -> None:
        """Record one run."""
        self.runs.setdefault(scenario, {}).setdefault(contender, []).append(figures)


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


class Arena:
    """A real RocketMQ with a filled topic, in which contenders take turns."""

    def __init__(
        self,
        cluster: RealCluster,
        messages: int,
        paced_seconds: int,
        patience_seconds: float,
        *,
        tls: bool = False,
        before: Path | None = None,
    ) -> None:
        self._before = before
        self._cluster = cluster
        self._tls = tls
        self._messages = messages
        self._paced_seconds = paced_seconds
        self._patience_seconds = patience_seconds
        self._numbers = itertools.count(1)
        self._filled_topic: str | None = None
        self._singly_filled_topic: str | None = None

    @classmethod
    @contextmanager
    def opened(
        cls,
        messages: int,
        paced_seconds: int = 20,
        patience_seconds: float = 0,
        *,
        tls: bool = False,
        before: Path | None = None,
    ) -> Iterator[Arena]:
        """Run a RocketMQ during the block; with `tls` it accepts only TLS.

        Each measured run first waits up to `patience_seconds` for other work on the machine to end. `before` is
        another checkout, whose rmqd takes turns with this one.
        """
        say(f"starting RocketMQ (heap {BROKER_HEAP}{', TLS' if tls else ''})")
        spec = ClusterSpec(heap=BROKER_HEAP, is_measured=True, certificates=tls, settings=BROKER_SETTINGS)
        with RealCluster.start(spec) as cluster:
            yield cls(cluster, messages, paced_seconds, patience_seconds, tls=tls, before=before)

    def compete(self, chosen: list[Scenario], names: tuple[str, ...], runs: int, results: Results) -> None:
        """Run every chosen scenario with these contenders, in rounds. In each round every contender runs once."""
        self._filled()  # also warms up the broker, unlike a paced run
        for scenario in chosen:
            self._cluster.set_broker(**(RAISED_LIMITS if scenario.limits_raised else BROKER_LIMITS))
            for number in range(1, runs + 1):
                for name in turns([name for name in self._contenders(scenario) if name in names], number):
                    say(f"{scenario.name}, run {number} of {runs}: {name}")
                    try:
                        figures = self._run_in_quiet(scenario, name)
                    except contest.ContestError as error:
                        say(str(error))
                        results.failures.append(f"{scenario.name}, run {number}: {error}")
                    else:
                        results.add(scenario.name, name, figures)

    def _contenders(self, scenario: Scenario) -> tuple[str, ...]:
        return scenario.contenders if self._before is None else (*scenario.contenders, contenders.BEFORE)

    def _run_in_quiet(self, scenario: Scenario, contender: str) -> Figures:
        """Run once, and again if the machine had other work. The run with the least other work counts."""
        best = self._run_once(scenario, contender)
        repeats = REPEATS if self._patience_seconds else 0
        while best.foreign_cpu_share >= QUIET_SHARE and repeats:
            repeats -= 1
            best = min(best, self._run_once(scenario, contender), key=lambda run: run.foreign_cpu_share)
        return best

    def _run_once(self, scenario: Scenario, contender: str) -> Figures:
        wait_until_quiet(self._patience_seconds)
        before = self._usage()
        figures = self.run(scenario, contender)
        figures = replace(figures, foreign_cpu_share=self._usage().foreign_share_since(before))
        say(f"  {summary(figures)}")
        return figures

    def run(
        self, scenario: Scenario, contender: str, *, sample_file: Path | None = None, prefix: tuple[str, ...] = ()
    ) -> Figures:
        """Run one contender once. Raises ContestError if it prints no figures."""
        directory = Path(tempfile.mkdtemp(prefix="rmqd-bench-"))
        try:
            if scenario.paced:
                return self._run_paced(scenario, contender, directory)
            messages = self._messages // {TRACE: TRACE_SHARE, POP: POP_SHARE}.get(scenario.switch, 1)
            topic = self._filled_singly(messages) if scenario.switch == TRACE else self._filled()
            job = self._job(scenario, contender, topic, messages, directory, sample_file=sample_file)
            if scenario.switch == POP:
                self._cluster.set_consume_mode(job.topic, job.group, "POP")
            is_traced = scenario.switch == TRACE
            trace_begin = traces.stored(self._cluster) if is_traced else {}
            broker_before = self._broker_cpu_seconds()
            figures = contest.run(job, prefix=prefix)
            spent = self._broker_cpu_seconds() - broker_before
            if is_traced:
                traced = traces.handled(self._cluster, job.group, trace_begin)
                figures = replace(figures, traced_share=traced / messages)
            return replace(figures, broker_cpu_us_per_message=spent * 1e6 / messages)
        finally:
            shutil.rmtree(directory)

    def _run_paced(self, scenario: Scenario, contender: str, directory: Path) -> Figures:
        topic = self._fill(PRELOADED)
        paced = PACED_RATE * (PACED_WARM_SECONDS + self._paced_seconds)
        warm = PRELOADED + PACED_RATE * PACED_WARM_SECONDS
        job = self._job(scenario, contender, topic, PRELOADED + paced, directory, warm=warm)

        def load() -> None:
            time.sleep(SETTLE_SECONDS)
            self._load(topic, paced, "--rate", str(PACED_RATE))

        return contest.run(job, when_started=load)

    def _job(
        self,
        scenario: Scenario,
        contender: str,
        topic: str,
        messages: int,
        directory: Path,
        *,
        warm: int = 0,
        sample_file: Path | None = None,
    ) -> Job:
        return Job(
            contender=contender,
            checkout=self._before if contender == contenders.BEFORE and self._before else contenders.ROOT,
            nameserver=self._cluster.nameserver,
            topic=topic,
            group=f"bench_{contender}_{os.getpid()}_{next(self._numbers)}",
            messages=messages,
            consume_batch=scenario.consume_batch,
            pull_batch=scenario.pull_batch,
            directory=directory,
            timeout_seconds=TIMEOUT_SECONDS,
            paced=scenario.paced,
            orderly=scenario.orderly,
            switch=scenario.switch,
            warm=warm,
            sample_file=sample_file,
        )

    def _filled(self) -> str:
        if self._filled_topic is None:
            say(f"loading {self._messages:,} messages of {BODY_BYTES} bytes into {QUEUES} queues")
            self._filled_topic = self._fill(self._messages)
            self._warm_up()
        return self._filled_topic

    def _filled_singly(self, messages: int) -> str:
        """Fill a topic one by one. Java traces only messages with a region, and brokers set none in batches."""
        if self._singly_filled_topic is None:
            say(f"loading {messages:,} messages one by one")
            self._singly_filled_topic = self._fill(messages, "--batch", "1")
        return self._singly_filled_topic

    def _warm_up(self) -> None:
        """Make the broker's JVM compile its code for pulls, so that the first contender does not wait for it."""
        say(f"warming the broker up: {WARM_UP_DRAINS} raw drains")
        for _ in range(WARM_UP_DRAINS):
            self.run(replace(SCENARIOS[0], switch=TLS if self._tls else ""), "raw")

    def _broker_cpu_seconds(self) -> float:
        pid = self._cluster.broker.pid
        return process_cpu_seconds(pid) if pid else 0.0

    def _usage(self) -> Usage:
        return Usage.now([node.pid for node in self._cluster.nodes if node.pid])

    def _fill(self, messages: int, *extra: str) -> str:
        topic = self._cluster.create_topic(f"bench_{os.getpid()}_{next(self._numbers)}", QUEUES)
        self._load(topic, messages, *extra)
        return topic

    def _load(self, topic: str, messages: int, *extra: str) -> None:
        arguments = ["--namesrv", self._cluster.nameserver, "--topic", topic, "--messages", str(messages)]
        arguments += ["--bytes", str(BODY_BYTES), *extra]
        subprocess.run([*contenders.java("Load", tls=self._tls), *arguments], check=True, stdout=subprocess.DEVNULL)


def turns(names: list[str], run: int) -> list[str]:
    """Return the order of a run (counted from 1): each contender is first, and last, equally often."""
    start = (run - 1) % len(names) if names else 0
    return names[start:] + names[:start]


def summary(figures: Figures) -> str:
    """Return one run's figures in one line."""
    text = (
        f"{figures.messages_per_second:,.0f} msg/s, CPU {figures.cpu_us_per_message:.2f} µs/msg, "
        f"{figures.peak_rss_mib:.0f} MiB, first message after {figures.first_seconds:.2f} s"
    )
    if figures.p50_ms is not None:
        text += f", p50 {figures.p50_ms:.2f} ms, p99 {figures.p99_ms:.2f} ms"
    if figures.traced_share is not None:
        text += f", trace of {figures.traced_share:.0%}"
    if figures.foreign_cpu_share >= QUIET_SHARE:
        text += f" (other work had {figures.foreign_cpu_share:.0%} of the machine)"
    return text
