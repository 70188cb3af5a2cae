"""The interface of a fuzzing target: running code with an input, and mutating inputs."""

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
"""Changes any bytes, up to a size limit. A fuzzer uses libFuzzer's mutations, which know the dictionary."""

CORPUS: Final = Path(__file__).with_name("corpus.zip")
"""The kept inputs, as TARGET/DIGEST."""
SLOW_SECONDS: Final = 0.25
"""The limit of processor time for one input."""
_TIMES: Final = 3
_GROWN: Final = 0.01


class Finding(AssertionError):
    """A defect: the target handles an input wrongly."""


class Target(ABC):
    """Code that reads untrusted input. One target runs any number of inputs."""

    name: str
    most_bytes: int
    """The size limit of one input."""
    cases = 0
    """How many frames, configurations or requests were in the inputs so far."""

    @abstractmethod
    def run(self, data: bytes) -> None:
        """Run the code with an input. Raises Finding, or any undocumented error of the code, if it has a defect."""

    def close(self) -> None:  # noqa: B027 - not all of them hold something
        """Release folders and tasks."""

    @abstractmethod
    def words(self) -> Sequence[bytes]:
        """Return the fuzzer's dictionary: words that may be inserted anywhere."""

    @abstractmethod
    def mutated(self, data: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
        """Return a mutation of this input. Lengths and the like are corrected, to pass the outermost checks."""

    def timed(self, data: bytes) -> float:
        """Run an input. Return its processor time in seconds. Raises Finding if each of three runs takes too long."""
        seconds = self._seconds(data)
        for _ in range(_TIMES - 1):
            if seconds <= SLOW_SECONDS:
                break
            seconds = min(seconds, self._seconds(data))  # one run may include a garbage collection
        if seconds > SLOW_SECONDS:
            raise Finding(f"it takes {seconds * 1000:.0f} ms of processor time")
        return seconds

    def _seconds(self, data: bytes) -> float:
        begin = time.thread_time()
        self.run(data)
        return time.thread_time() - begin


def growing(change: Change, chance: Random) -> Change:
    """Return the change, extended: it sometimes repeats a piece of the input, up to 4,500 times."""

    def grown(data: bytes, most_bytes: int) -> bytes:
        if chance.random() > _GROWN or not data:
            return change(data, most_bytes)
        at = chance.randrange(len(data))
        piece = data[at : at + chance.choice([1, 1, 2, 8])]
        return (data[:at] + piece * chance.choice([40, 400, 4500]) + data[at:])[:most_bytes]

    return grown


@contextmanager
def replaced(*new: tuple[Any, str, object]) -> Iterator[None]:
    """Replace attributes of modules and objects temporarily."""
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
    """Rewrite the archive with these inputs for one target. Keys are digests."""
    entries = {entry: data for entry, data in _kept("").items() if not entry.startswith(f"{name}/")}
    entries |= {f"{name}/{digest}": data for digest, data in inputs.items()}
    with ZipFile(CORPUS, "w") as archive:
        for entry in sorted(entries):  # entries without a date, so that the same inputs give the same archive
            archive.writestr(ZipInfo(entry), entries[entry], ZIP_DEFLATED, 9)


def _kept(prefix: str) -> dict[str, bytes]:
    with ZipFile(CORPUS) as archive:
        return {entry: archive.read(entry) for entry in archive.namelist() if entry.startswith(prefix)}
