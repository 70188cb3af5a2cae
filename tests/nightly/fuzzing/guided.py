"""One run of a fuzzer that is guided by coverage: `python -m tests.nightly.fuzzing.guided TARGET FIGURES [OPTION...]`.

It needs a separate process, because libFuzzer, whose options these are, ends its process. It writes its figures as
JSON to FIGURES, unless a signal ends it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile
from typing import Final

import atheris

from tests.nightly.fuzzing.target import Target, corpus
from tests.nightly.fuzzing.targets import INSTRUMENTED, load

PLANT: Final = "--planted"
"""An option of this module: plant the target's bug of `planted`."""


@dataclass(slots=True)
class Figures:
    """The figures of one run."""

    executions: int = 0
    cases: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    slowest_input: str = ""
    peak_rss_bytes: int = 0


class Guided:
    """The callbacks of libFuzzer for one target, with their counts."""

    def __init__(self, target: Target, path: Path) -> None:
        self.figures = Figures()
        self._target = target
        self._path = path
        self._begin = time.monotonic()

    def one_input(self, data: bytes) -> None:
        """Called by libFuzzer for each input."""
        seconds = self._target.timed(data)
        figures = self.figures
        figures.executions += 1
        if seconds > figures.slowest_seconds:
            figures.slowest_seconds, figures.slowest_input = seconds, data.hex()

    def changed(self, data: bytes, most_bytes: int, seed: int) -> bytes:
        """Called by libFuzzer for a mutation of an input."""
        return self._target.mutated(data, most_bytes, Random(seed), atheris.Mutate)

    def write(self) -> None:
        """Write the figures to the caller's file."""
        self.figures.cases = self._target.cases
        self.figures.seconds = time.monotonic() - self._begin
        self.figures.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._path.write_text(json.dumps(asdict(self.figures)))


def dictionary(target: Target) -> str:
    """Return the target's words as a libFuzzer dictionary."""
    return "".join(f'"{_escaped(word)}"\n' for word in target.words())


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def main(name: str, figures: Path, options: list[str]) -> None:
    """Does not return: libFuzzer ends the process."""
    with atheris.instrument_imports(include=list(INSTRUMENTED[name])):
        target = load(name)
        for data in corpus(name):
            target.run(data)  # so that late imports are instrumented, and do not count as an input's time
        if PLANT in options:
            setattr(*importlib.import_module("tests.nightly.fuzzing.planted").PLANTED[name]())
    guided = Guided(target, figures)
    atexit.register(guided.write)
    with NamedTemporaryFile("w", suffix=".dict", delete=False) as file:
        file.write(dictionary(target))
    # to merge, libFuzzer starts itself again with its first argument, which a shell parses
    itself = f"{sys.executable} -m {__spec__.name} {name} {figures}"
    arguments = [itself, f"-dict={file.name}", f"-max_len={target.most_bytes}", *filter(PLANT.__ne__, options)]
    atheris.Setup(arguments, guided.one_input, custom_mutator=guided.changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
