"""Commits that members report, polled repeatedly: falling offsets, and the least offsets that a broker must have."""

from __future__ import annotations

import bisect
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.background import Background
from tests.integration.rmqd_process import RmqdProcess

POLL_SECONDS = 0.2
LOG_RESOLUTION_MICROS = 1000


class Place(NamedTuple):
    """A queue, as `topic@broker:number`."""

    topic: str
    broker: str
    queue: int

    def __str__(self) -> str:
        """The format of rmqd's log."""
        return f"{self.topic}@{self.broker}:{self.queue}"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that a member first reported at `at_micros` since 1970; `asked_micros` is the previous poll."""

    member: str
    place: Place
    offset: int
    asked_micros: int
    at_micros: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """An event about one queue in a member's log."""

    member: str
    event: str
    place: str
    offset: int
    at_micros: int


def log_lines(member: str, events: Iterable[Mapping[str, Any]], *names: str) -> list[LogLine]:
    """Return the events with these names."""
    return [
        LogLine(member, event["event"], event["queue"], int(event["offset"]), micros(event["timestamp"]))
        for event in events
        if event.get("event") in names
    ]


def micros(timestamp: str) -> int:
    """Return the time of a log line (to the millisecond) in microseconds since 1970."""
    moment = datetime.strptime(timestamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000) * 1000


def unexplained_falls(commits: Sequence[Commit], fell: Iterable[LogLine]) -> list[str]:
    """Return commits below an earlier one of the same member and queue that no `offset.fell` in its log explains.

    The member logs `offset.fell` if it acquires a queue and the broker's value is lower. Within one ownership no
    offset may fall.
    """
    lines = list(fell)
    latest: dict[tuple[str, Place], int] = {}
    found = []
    for commit in commits:
        before = latest.get((commit.member, commit.place), 0)
        latest[commit.member, commit.place] = commit.offset
        if commit.offset >= before:
            continue
        earliest, last = commit.asked_micros - LOG_RESOLUTION_MICROS, commit.at_micros
        told = any(
            line.member == commit.member and line.place == str(commit.place) and earliest <= line.at_micros <= last
            for line in lines
        )
        if not told:
            found.append(f"{commit.member} had committed {before} in {commit.place}, then {commit.offset}")
    return found


class History:
    """The highest committed offset of all members at any time."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._rises: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        for commit in commits:
            times, highest = self._rises.setdefault((commit.place.broker, commit.place.queue), ([], []))
            if not highest or commit.offset > highest[-1]:
                times.append(commit.at_micros)
                highest.append(commit.offset)

    def committed(self, broker: str, queue: int, at_micros: int) -> int:
        """Return 0 if no commit was known yet."""
        times, highest = self._rises.get((broker, queue), ([], []))
        known = bisect.bisect_right(times, at_micros)
        return highest[known - 1] if known else 0


class CommitWatch(Background):
    """Asks every member for its commits five times a second and writes each change to a file as a line."""

    def __init__(self, members: Mapping[str, RmqdProcess], group: str, topic: str, path: Path) -> None:
        super().__init__(f"commits of {group}")
        self._members = members
        self._group, self._topic = group, topic
        self._path = path
        self._commits: list[Commit] = []

    @property
    def commits(self) -> list[Commit]:
        """All commits until now, in the order of time."""
        return list(self._commits)

    def highest(self) -> dict[Place, int]:
        """Return the least offset that a broker must have, by queue: the highest that any member has committed."""
        found: dict[Place, int] = {}
        for commit in self.commits:
            found[commit.place] = max(found.get(commit.place, 0), commit.offset)
        return found

    def work(self) -> None:
        """Poll until the end of the block."""
        latest: dict[tuple[str, Place], int] = {}
        asked = dict.fromkeys(self._members, time.time_ns() // 1000)
        with self._path.open("a", buffering=1) as file:
            while not self.stop.wait(POLL_SECONDS):
                for name, process in self._members.items():
                    before, asked[name] = asked[name], time.time_ns() // 1000
                    for place, offset in self._ask(process):
                        if latest.get((name, place)) != offset:
                            latest[name, place] = offset
                            commit = Commit(name, place, offset, before, time.time_ns() // 1000)
                            self._commits.append(commit)
                            file.write(json.dumps(asdict(commit)) + "\n")

    def _ask(self, process: RmqdProcess) -> list[tuple[Place, int]]:
        code, body = process.get("/api/v1/status")
        if code != 200:  # the daemon is not listening yet, or has ended
            return []
        groups = [entry for entry in json.loads(body)["groups"] if entry["name"] == self._group]
        return [
            (Place(self._topic, queue["broker"], queue["queue"]), queue["committed"])
            for group in groups
            for queue in group["queues"]
            if queue["topic"] == self._topic and not queue["is_retry"] and queue["committed"] is not None
        ]
