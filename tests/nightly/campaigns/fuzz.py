"""Fuzz: coverage-guided inputs for each target, in parts that run in one process each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.nightly.fuzzing.target import SLOW_SECONDS, unpack
from tests.nightly.fuzzing.targets import TARGETS
from tests.rocketmq.fetch import say

PART_EXECUTIONS: Final = 25_000
HANGING_SECONDS: Final = 10
MAX_RSS_MIB: Final = 256
"""The process needs about 80 MiB, including its instrumentation."""
_TOP: Final = Path(__file__).parents[3]
_DONE: Final = re.compile(r"^Done \d+ in \d+ second", re.MULTILINE)
_COVERAGE: Final = re.compile(r"\bcov: (\d+) ft: (\d+) corp: (\d+)/")


class FuzzError(Exception):
    """The run in a directory cannot continue, or the target fails for an input."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some executions of a run and their figures: a line of the run's file."""

    target: str
    seed: int
    executions: int
    cases: int
    """The number of frames, configurations or requests in the inputs."""
    seconds: float
    slowest_seconds: float
    slowest_input: str
    peak_rss_bytes: int
    edges: int
    inputs: int
    """The number of inputs kept in total because of their coverage."""

    def line(self) -> str:
        """The part as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of(cls, line: str) -> Part:
        """Parse a part from its line."""
        return cls(**json.loads(line))


RunPart = Callable[[str, int, int, Path], Part]
"""Runs a number of executions with a seed in a directory: `run_guided`, or a test's replacement."""


@dataclass(frozen=True, slots=True)
class FuzzResult:
    """The result of all parts of a target."""

    target: str
    seed: int
    parts: Sequence[Part]

    @property
    def executions(self) -> int:
        """The number of executions of the target."""
        return sum(part.executions for part in self.parts)

    @property
    def cases(self) -> int:
        """The number of frames, configurations or requests."""
        return sum(part.cases for part in self.parts)

    @property
    def slowest_seconds(self) -> float:
        """Processor time of the slowest input."""
        return max(part.slowest_seconds for part in self.parts)

    @property
    def peak_rss_mib(self) -> float:
        """The peak memory of all parts."""
        return max(part.peak_rss_bytes for part in self.parts) / 2**20

    @property
    def passed(self) -> bool:
        """Whether no input was slow, and memory stayed bounded. Other failures end the run."""
        return self.slowest_seconds <= SLOW_SECONDS and self.peak_rss_mib <= MAX_RSS_MIB

    def report(self) -> str:
        last = self.parts[-1]
        return (
            f"fuzz, {self.target}, seed {self.seed}: {self.executions} inputs, {self.cases} cases, {last.edges} edges, "
            f"{last.inputs} kept, slowest {self.slowest_seconds * 1000:.1f} ms, "
            f"peak RSS {self.peak_rss_mib:.0f} MiB: {'passed' if self.passed else 'FAILED'}"
        )

    def cells(self) -> list[object]:
        """The row of docs/proof/campaigns.md, without date and commit."""
        last, seconds = self.parts[-1], sum(part.seconds for part in self.parts)
        slowest, rss = f"{self.slowest_seconds * 1000:.1f} ms", f"{self.peak_rss_mib:.0f} MiB"
        return [
            self.target,
            self.seed,
            self.executions,
            self.cases,
            last.edges,
            last.inputs,
            f"{seconds:.0f}",
            slowest,
            rss,
        ]


class Fuzz:
    """The run of one target in a directory. A new start with the same directory resumes an interrupted run."""

    def __init__(
        self,
        target: str,
        executions: int,
        seed: int,
        directory: Path,
        *,
        run_part: RunPart | None = None,
    ) -> None:
        """Raises FuzzError if the directory holds a run with another seed."""
        if target not in TARGETS:
            raise FuzzError(f"no target {target}; accepted: {', '.join(TARGETS)}")
        self._target, self._planned, self._seed = target, executions, seed
        self._directory = directory / target
        self._directory.mkdir(parents=True, exist_ok=True)
        self._path = self._directory / "parts.jsonl"
        self._run_part = run_part or run_guided
        self._parts = _whole_parts(self._path)
        others = {part.seed for part in self._parts} - {seed}
        if others:
            raise FuzzError(
                f"{directory} holds a run with seed {others.pop()}, not {seed}: give that seed, or another --dir"
            )

    def run(self) -> FuzzResult:
        """Run the missing executions. Raises FuzzError if the target fails for an input."""
        done = sum(part.executions for part in self._parts)
        with self._path.open("w") as file:  # without an incomplete last line
            file.writelines(part.line() for part in self._parts)
            while done < self._planned:
                count = min(PART_EXECUTIONS, self._planned - done)
                part_seed = self._seed + len(self._parts)
                part = self._run_part(self._target, count, part_seed, self._directory)
                part = Part(**{**asdict(part), "seed": self._seed})
                self._parts.append(part)
                file.write(part.line())
                file.flush()
                done += part.executions
                say(f"{self._target}: {done} of {self._planned}, {part.edges} edges, {part.inputs} inputs")
        return FuzzResult(self._target, self._seed, tuple(self._parts))


def run_guided(target: str, executions: int, seed: int, directory: Path) -> Part:
    """Run one part in a new process. The next part starts with the inputs that this part keeps in `directory`."""
    kept, log, figures = directory / "corpus", directory / "log.txt", directory / "figures.json"
    kept.mkdir(exist_ok=True)
    figures.unlink(missing_ok=True)
    options = [
        f"-atheris_runs={executions}",
        f"-seed={seed}",
        f"-timeout={HANGING_SECONDS}",
        f"-rss_limit_mb={2 * MAX_RSS_MIB}",
        f"-artifact_prefix={directory}/",
    ]
    corpora = [str(kept), str(unpack(target, directory / "kept"))]
    command = [sys.executable, "-m", "tests.nightly.fuzzing.guided", target, str(figures), *options, *corpora]
    with log.open("w") as file:
        status = subprocess.run(command, cwd=_TOP, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(errors="replace")
    found = re.search(r"Test unit written to (\S+)", text)
    if found is not None:
        again = f"python -m tests.nightly.fuzzing {target} {found[1]}"
        raise FuzzError(f"{target}: {_why(text)}; {log} has more, and it comes again by: {again}")
    if not (figures.exists() and _DONE.search(text)):  # libFuzzer's timer may end it by SIGALRM while Python ends
        raise FuzzError(f"{target}: the fuzzer ended with {status}: {text[-500:]}")
    did: dict[str, Any] = json.loads(figures.read_text())
    edges, _, inputs = _COVERAGE.findall(text)[-1]
    return Part(target=target, seed=seed, edges=int(edges), inputs=int(inputs), **did)


def _why(log: str) -> str:
    """Return the exception that ended the fuzzer, or libFuzzer's summary."""
    lines = log.partition("Uncaught Python exception: ===\n")[2].splitlines()
    summaries = [line for line in log.splitlines() if line.startswith("SUMMARY")]
    return next(iter([*lines, *summaries]), "no reason given")


def _whole_parts(path: Path) -> list[Part]:
    """Return the finished parts of earlier processes. An incomplete line of a killed process does not count."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Part.of(line) for line in lines if line.endswith("\n")]
