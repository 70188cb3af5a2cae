"""The ledger: a line for every message sent, begun, finished and failed, by any process. It shows lost messages.

A line is written by one write to a file opened for appending, so that kill -9 leaves whole lines: event, key, broker,
queue, offset, member, microseconds since 1970, reconsume times, separated by tabs. `java/Ledger.java` writes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SENT, START, FINISH, FAIL = "sent", "start", "finish", "fail"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line; `offset` is the queue's, `at_micros` microseconds since 1970."""

    event: str
    key: str
    broker: str
    queue: int
    offset: int
    member: str
    at_micros: int
    reconsume_times: int

    def line(self) -> str:
        """The line, with its end."""
        values = (self.event, self.key, self.broker, self.queue, self.offset, self.member, self.at_micros)
        return "\t".join(map(str, (*values, self.reconsume_times))) + "\n"

    @classmethod
    def parse(cls, line: str) -> Entry:
        """The reverse of `line`."""
        event, key, broker, queue, offset, member, at_micros, times = line.rstrip("\n").split("\t")
        return cls(event, key, broker, int(queue), int(offset), member, int(at_micros), int(times))


def sharding(key: str) -> tuple[str, int]:
    """The sharding key that a message's key names, and its number there, from 0: `s3.14` is number 14 of `s3`."""
    name, _, number = key.rpartition(".")
    return name, int(number)


def read(*paths: Path) -> list[Entry]:
    """Return all complete lines of these files, sorted by time. A missing file has none."""
    return sorted(_lines(paths), key=lambda entry: entry.at_micros)


def _lines(paths: tuple[Path, ...]) -> Iterator[Entry]:
    for path in paths:
        if path.exists():
            with path.open() as file:
                yield from (Entry.parse(line) for line in file if line.endswith("\n"))


class Tail:
    """The keys finished so far, in files that grow. Each call of `finished` reads only the new lines."""

    def __init__(self) -> None:
        self._finished: set[str] = set()
        self._read_bytes: dict[Path, int] = {}

    def finished(self, paths: Iterable[Path]) -> set[str]:
        """Every finished key in these files."""
        for path in paths:
            if path.exists():
                self._read(path)
        return self._finished

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read_bytes.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole)
        entries = map(Entry.parse, whole.decode().splitlines())
        self._finished.update(entry.key for entry in entries if entry.event == FINISH)
