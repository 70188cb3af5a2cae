"""Alerts: each shipped rule fires for a real fault and resolves after the repair. Times are divided by a factor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.nightly.deploy.scene import Scene, Told, tell
from tests.rocketmq.cluster import RealCluster

FACTOR: Final = 10
PATIENCE_SECONDS: Final = 480.0
UNMADE: Final = {"RmqdMessagesLost"}  # brokers keep messages for at least an hour: promtool tests this rule


@dataclass(frozen=True, slots=True)
class AlertsResult:
    """The result of a run. `problem` is empty if each alert fired and resolved."""

    factor: float
    told: Sequence[Told]
    rules: Sequence[str]
    problem: str
    seconds: float

    @property
    def untold(self) -> list[str]:
        """The rules that did not fire and resolve."""
        return sorted(set(self.rules) - {one.alert for one in self.told})

    @property
    def passed(self) -> bool:
        """Whether every rule fired and resolved."""
        return not self.untold and not self.problem

    def cells(self) -> list[object]:
        """Return the row of the campaign's table."""
        each = "; ".join(
            f"{one.alert.removeprefix('Rmqd')} {one.fired_seconds:.0f}, {one.resolved_seconds:.0f}" for one in self.told
        )
        return [self.factor, f"{len(self.told)} of {len(self.rules)}", f"{self.seconds:.0f}", each]

    def report(self) -> str:
        lines = [
            f"{one.alert:24} fired after {one.fired_seconds:6.1f} s, resolved after {one.resolved_seconds:6.1f} s"
            for one in self.told
        ]
        return "\n".join([*lines, *(f"{name:24} did not" for name in self.untold), self.problem]).strip()


class Alerts:
    """The faults of groups and daemons at the same time, then the faults that kill processes."""

    def __init__(self, cluster: RealCluster, directory: Path, factor: float) -> None:
        self._cluster = cluster
        self._directory = directory
        self._factor = factor

    def run(self) -> AlertsResult:
        """Cause each fault once."""
        begin = time.monotonic()
        told: list[Told] = []
        problem = ""
        with Scene(self._cluster, self._directory, self._factor) as scene:
            shipped = [rule["name"] for rule in scene.prometheus.get("rules")["groups"][0]["rules"]]
            rules = [name for name in shipped if name not in UNMADE]
            try:
                told += tell(scene, [*scene.faults(), *scene.faults_of_daemons()], PATIENCE_SECONDS)
                for fault in scene.faults_of_processes():  # such faults hide each other
                    told += tell(scene, [fault], PATIENCE_SECONDS)
            except AssertionError as error:
                problem = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return AlertsResult(self._factor, told, rules, problem, time.monotonic() - begin)
