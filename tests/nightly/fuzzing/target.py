"""What a fuzzer needs of one target: the code that an input goes through, and how inputs are changed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

Change = Callable[[bytes, int], bytes]
"""Changes bytes anyhow, to at most so many: libFuzzer's own mutations, which know the dictionary."""

CORPUS: Final = Path(__file__).with_name("corpus.zip")
"""The kept inputs, as TARGET/DIGEST."""
SLOW_SECONDS: Final = 0.25
"""Processor time that one input may take."""
_TIMES: Final = 3
_GROWN: Final = 0.01


class Finding(AssertionError):
    """The target does with an input what it should not do."""


class Target(ABC):
    """Code that reads what strangers write. Made once, it takes any number of inputs."""

    name: str
    most_bytes: int
    """Of one input."""
    cases = 0
    """How many frames, configurations or requests were in the inputs so far."""

    @abstractmethod
    def run(self, data: bytes) -> None:
        """Put an input through the code. Raises whatever is a defect: Finding, or what escapes from the code."""

    def close(self) -> None:  # noqa: B027 - not all of them hold something
        """Leave nothing behind: no folder, and no task."""

    @abstractmethod
    def words(self) -> Sequence[bytes]:
        """What is worth putting in anywhere: the dictionary of the fuzzer."""

    @abstractmethod
    def mutated(self, data: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
        """Another input made of this one. What the outermost checks compare, such as lengths, is put right."""

    def timed(self, data: bytes) -> float:
        """Run an input. Returns its seconds of processor time; raises Finding where they are too many each time."""
        seconds = self._seconds(data)
        for _ in range(_TIMES - 1):
            if seconds <= SLOW_SECONDS:
                break
            seconds = min(seconds, self._seconds(data))  # a collection of garbage is not the input's
        if seconds > SLOW_SECONDS:
            raise Finding(f"it takes {seconds * 1000:.0f} ms of processor time")
        return seconds

    def _seconds(self, data: bytes) -> float:
        begin = time.thread_time()
        self.run(data)
        return time.thread_time() - begin


def growing(change: Change, chance: Random) -> Change:
    """The same change, and sometimes a piece repeated thousands of times: digits, brackets, whatever is there."""

    def grown(data: bytes, most_bytes: int) -> bytes:
        if chance.random() > _GROWN or not data:
            return change(data, most_bytes)
        at = chance.randrange(len(data))
        piece = data[at : at + chance.choice([1, 1, 2, 8])]
        return (data[:at] + piece * chance.choice([40, 400, 4500]) + data[at:])[:most_bytes]

    return grown


@contextmanager
def replaced(*new: tuple[Any, str, object]) -> Iterator[None]:
    """Attributes of modules and objects, replaced for a while."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in new]
    for owner, name, value in new:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def corpus(name: str) -> list[bytes]:
    """Return the kept inputs of a target, smallest first."""
    return sorted(_kept(f"{name}/").values(), key=lambda data: (len(data), data))


def unpack(name: str, directory: Path) -> Path:
    """Write the kept inputs of a target to files in `directory`, which libFuzzer reads. Return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for entry, data in _kept(f"{name}/").items():
        (directory / entry.rpartition("/")[2]).write_bytes(data)
    return directory


def replace_corpus(name: str, inputs: Mapping[str, bytes]) -> None:
    """Write the archive again, with these inputs for one target. Keys are digests."""
    entries = {entry: data for entry, data in _kept("").items() if not entry.startswith(f"{name}/")}
    entries |= {f"{name}/{digest}": data for digest, data in inputs.items()}
    with ZipFile(CORPUS, "w") as archive:
        for entry in sorted(entries):  # an entry has no date, so that the same inputs give the same archive
            archive.writestr(ZipInfo(entry), entries[entry], ZIP_DEFLATED, 9)


def _kept(prefix: str) -> dict[str, bytes]:
    with ZipFile(CORPUS) as archive:
        return {entry: archive.read(entry) for entry in archive.namelist() if entry.startswith(prefix)}
