"""Scene: two daemons under load, scraped by a Prometheus, and a real fault for each alert rule."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.deploy.prometheus_process import Prometheus
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

HANDLER: Final = "tests.nightly.deploy.switched_handler:SwitchedHandler"
QUEUES: Final = 2
PER_SECOND: Final = 10
MANY: Final = 1_000_000
# Each group's options, which `_group` adds to the common options.
GROUPS: Final[dict[str, dict[str, Any]]] = {
    "well": {},
    "failing": {"delay_level_when_next_consume": 1},
    "poisoned": {},
    "corrupt": {"on_corrupt_message": "skip", "max_body_size": "1KiB"},
    "slow": {},
    "held": {"pull_threshold_for_queue": 4},
    "hanging": {"pull_threshold_for_queue": 4},
    "unreadable": {},
    "without-disk": {"message_model": "broadcasting"},
    "without-topic": {},
    "broken": {},
    "paused": {},
}
BESIDE: Final = "blocking"
ONE_AT_A_TIME: Final = ("slow", "held", "hanging", BESIDE)


@dataclass(frozen=True, slots=True)
class Fault:
    """A real fault with its begin and end, and the alert that must report it."""

    alert: str
    begin: Callable[[], object]
    end: Callable[[], object]
    labels: dict[str, str] = field(default_factory=dict)
    reaches_all: bool = False
    """Whether the healthy group is affected too."""

    def is_told(self, firing: list[dict[str, str]]) -> bool:
        """Whether the alert fires with these labels."""
        wanted = {"alertname": self.alert, **self.labels}
        return any(wanted.items() <= labels.items() for labels in firing)


class Scene:
    """All processes, running for a `with` block. The daemon `main` has a group for each fault of a group."""

    def __init__(self, cluster: RealCluster, folder: Path, factor: float) -> None:
        self.cluster = cluster
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        groups = {name: self._group(name, **more) for name, more in GROUPS.items()}
        self.main = RmqdProcess(folder / "main", cluster.nameserver, groups)
        # without a series for each queue
        more = ("--workers", "2", "--set", "metrics.per_queue_limit=0")
        self.beside = RmqdProcess(folder / "beside", cluster.nameserver, {BESIDE: self._group(BESIDE)}, *more)
        self.prometheus = Prometheus(folder / "prometheus", [self.main.http, self.beside.http], factor)
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as running:
            self.switch("broken", "broken")
            for name in (*GROUPS, BESIDE):
                if name != "without-topic":
                    self.cluster.create_topic(_topic(name), QUEUES)
                    running.enter_context(Load(self.cluster, _topic(name), MANY, per_second=PER_SECOND, queues=QUEUES))
            for process in (self.main, self.beside, self.prometheus):
                running.enter_context(process)
            wait_until(lambda: self.prometheus.value('up{job="rmqd"}') == 2, "both daemons are scraped", 60)
            wait_until(lambda: self._acked("well") > 0, f"messages are handled\n{self.main.tail()}", 60)
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.__exit__(kind, error, traceback)

    def switch(self, group: str, text: str) -> None:
        """Set the action of a group's handler. The file is replaced atomically."""
        path = self._folder / f"{group}.switch"
        temporary = path.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(path)

    def faults(self) -> list[Fault]:
        """The faults of groups. All may be active at once."""

        def switched(alert: str, group: str, text: str, **labels: str) -> Fault:
            ends = {"group": group, **labels}
            return Fault(alert, lambda: self.switch(group, text), lambda: self.switch(group, ""), ends)

        return [
            switched("RmqdHandlerFailing", "failing", "fail"),
            switched("RmqdDeadLetters", "poisoned", "dead_letter", topic=_topic("poisoned")),
            Fault("RmqdMessagesCorrupt", self._send_too_large, lambda: None, {"group": "corrupt"}),
            switched("RmqdLagGrowing", "slow", "slow", topic=_topic("slow")),
            switched("RmqdFlowControlled", "held", "slow", topic=_topic("held")),
            switched("RmqdQueuesStandStill", "hanging", "hang", cause="slow_handler"),
            switched("RmqdGroupFailed", "broken", "broken"),
            Fault(
                "RmqdQueueStuck",
                lambda: self.cluster.create_topic(_topic("unreadable"), QUEUES, permission=2),
                lambda: self.cluster.create_topic(_topic("unreadable"), QUEUES),
                {"group": "unreadable"},
            ),
            Fault("RmqdNoCommit", self._break_disk, self._mend_disk, {"group": "without-disk"}),
            Fault(
                "RmqdGroupProblem",
                lambda: None,  # the topic is missing from the beginning
                lambda: self.cluster.create_topic(_topic("without-topic"), QUEUES),
                {"group": "without-topic", "cause": "topic_missing"},
            ),
            Fault(
                "RmqdPaused",
                lambda: self.main.post("/api/v1/groups/paused/pause"),
                lambda: self.main.post("/api/v1/groups/paused/resume"),
                {"group": "paused"},
            ),
        ]

    def faults_of_daemons(self) -> list[Fault]:
        """The faults of daemons. They may be active together with faults of groups."""
        main, beside = {"instance": self.main.http}, {"instance": self.beside.http}
        return [
            Fault("RmqdReloadFailed", self._reload_wrongly, self._reload, main),
            Fault(
                "RmqdEventLoopBlocked",
                lambda: self.switch(BESIDE, "block"),
                lambda: self.switch(BESIDE, ""),
                beside,
            ),
            Fault("RmqdWorkerDied", self._kill_worker, lambda: None, beside),
        ]

    def faults_of_processes(self) -> list[Fault]:
        """The faults that kill a process. Begin them after all other faults."""
        return [
            Fault("RmqdDown", self.beside.kill, self.beside.start, {"instance": self.beside.http}),
            Fault(
                "RmqdBrokerUnreachable",
                lambda: self.cluster.kill("broker"),
                self.cluster.up,
                {"broker": self.cluster.broker.name},
                reaches_all=True,
            ),
        ]

    def _group(self, name: str, **more: object) -> dict[str, Any]:
        return {
            "subscriptions": {_topic(name): "*"},
            "consume_from_where": "first_offset",
            "persist_consumer_offset_interval": "500ms",
            "handler": {
                "plugin": HANDLER,
                "options": {"switch": str(self._folder / f"{name}.switch")},
                "concurrency": 1 if name in ONE_AT_A_TIME else 20,
            },
            **more,
        }

    def _acked(self, group: str) -> float:
        return self.main.metric("rmqd_messages_handled_total", group=group, result="acked")

    def _offset_files(self) -> Iterator[Path]:
        folder = self.main.directory / "state" / "offsets" / "without-disk"
        wait_until(lambda: (folder / "offsets.json.bak").exists(), "offsets were stored")
        for name in ("offsets.json", "offsets.json.bak"):
            yield folder / f"{name}.tmp"

    def _break_disk(self) -> None:
        """Block the temporary files that are written first with folders of the same name."""
        for path in self._offset_files():
            wait_until(lambda path=path: _made(path), f"{path} is a folder")  # type: ignore[misc]

    def _mend_disk(self) -> None:
        for path in self._offset_files():
            path.rmdir()

    def _reload_wrongly(self) -> None:
        path = self.main.config_path
        path.with_suffix(".good").write_text(path.read_text())
        path.write_text(path.read_text() + "nonsense: 1\n")
        self.main.signal(signal.SIGHUP)

    def _reload(self) -> None:
        path = self.main.config_path
        path.write_text(path.with_suffix(".good").read_text())
        self.main.signal(signal.SIGHUP)

    def _send_too_large(self) -> None:
        with Producer(self.cluster.broker.address, _topic("corrupt")) as producer:
            producer.send(b"x" * 2000, queue=0)

    def _kill_worker(self) -> None:
        workers = wait_until(lambda: self.beside.status()["workers"], "there are workers")
        os.kill(workers[0]["pid"], signal.SIGKILL)


def _topic(group: str) -> str:
    return f"of-{group}"


def _made(folder: Path) -> bool:
    """Whether the folder exists now. A temporary file may have its name for a moment."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    return folder.is_dir()


@dataclass(frozen=True, slots=True)
class Told:
    """How long an alert took to fire after its fault began, and to resolve after the fault ended."""

    alert: str
    fired_seconds: float
    resolved_seconds: float


def tell(scene: Scene, faults: list[Fault], patience_seconds: float) -> list[Told]:
    """Begin all faults, wait until each alert has fired, end the faults, and wait until each alert is resolved.

    Raises AssertionError for an alert that does not fire or resolve, and, unless a fault reaches all groups, for an
    alert about the healthy group.
    """
    fired = _wait(scene, faults, patience_seconds, Fault.is_told, "fires", [fault.begin for fault in faults])
    resolved = _wait(
        scene,
        faults,
        patience_seconds,
        lambda fault, firing: not fault.is_told(firing),
        "resolves",
        [fault.end for fault in faults],
    )
    return [Told(fault.alert, fired[fault.alert], resolved[fault.alert]) for fault in faults]


def _wait(
    scene: Scene,
    faults: list[Fault],
    patience_seconds: float,
    is_so: Callable[[Fault, list[dict[str, str]]], bool],
    what: str,
    actions: list[Callable[[], object]],
) -> dict[str, float]:
    begin = time.monotonic()
    for action in actions:
        action()
    seconds: dict[str, float] = {}

    def all_are() -> bool:
        firing = scene.prometheus.firing()
        of_well = [labels for labels in firing if labels.get("group") == "well"]
        assert not of_well or any(fault.reaches_all for fault in faults), of_well
        for fault in faults:
            if fault.alert not in seconds and is_so(fault, firing):
                seconds[fault.alert] = time.monotonic() - begin
        return len(seconds) == len(faults)

    names = ", ".join(fault.alert for fault in faults)
    try:
        wait_until(all_are, f"each {what}: {names}", patience_seconds)
    except AssertionError as error:
        error.add_note(f"so far: {seconds}\nfiring: {scene.prometheus.firing()}\n{scene.main.tail()}")
        raise
    return seconds
