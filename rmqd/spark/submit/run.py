"""Submits a group to a cluster: writes the files for spark-submit into a folder, runs it, and stops it gracefully."""

from __future__ import annotations

import ctypes
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rmqd.errors import RmqdError
from rmqd.exit_codes import ExitCode
from rmqd.spark.submit.packed_environment import NAME
from rmqd.spark.submit.submission import ENDED, MAIN, ORDER, PROPERTIES, Submission

STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
_MAIN_PROGRAM: Final = (
    "import sys\n\nfrom rmqd.spark.submit.submitted import main\n\nif __name__ == '__main__':\n    sys.exit(main())\n"
)
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def find_spark_submit(spark_home: str = "") -> str:
    """Return the path of spark-submit: from this folder, SPARK_HOME, or PySpark. Raises RmqdError if it is missing."""
    for source, home in (("--spark-home", spark_home), ("SPARK_HOME", os.environ.get("SPARK_HOME", ""))):
        if home:
            program = Path(home).absolute() / "bin" / "spark-submit"
            if not os.access(program, os.X_OK):
                raise RmqdError(f"{source} is {home}, but there is no program {program}")
            return str(program)
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise RmqdError("there is no spark-submit; run pip install 'rmqd[spark]', or set SPARK_HOME")
    return str(Path(found.origin).parent / "bin" / "spark-submit")


def write_folder(submission: Submission, folder: Path) -> None:
    """Write the files that the command names, readable only for this user: they contain the configured passwords."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / MAIN).write_text(_MAIN_PROGRAM)
    _write_private(folder / ORDER, pickle.dumps(submission.order))
    if secrets := submission.secret_conf():
        lines = [f"{key} {_escaped(value)}\n" for key, value in sorted(secrets.items())]
        _write_private(folder / PROPERTIES, "".join(lines).encode())
    if submission.is_here and submission.environment:
        launcher = folder / NAME / "bin" / "python"
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        launcher.chmod(0o755)


def run(submission: Submission, spark_submit: str, folder: Path) -> int:
    """Run spark-submit until it ends, and return its exit code.

    A signal ends the group gracefully, a second one at once. A local driver that ended gracefully counts as success,
    regardless of the JVM's exit code after the signal. Raises OSError.
    """
    with (
        subprocess.Popen(
            submission.command(spark_submit, folder),
            cwd=folder,
            start_new_session=True,  # Ctrl-C in a terminal should reach only this process, which forwards it
            preexec_fn=_end_with_parent,
            stdin=subprocess.DEVNULL,
        ) as process,
        _handing_on(process),
    ):
        code = process.wait()
    if (folder / ENDED).exists():
        return int((folder / ENDED).read_text())
    return code if code >= 0 else ExitCode.FAILURE


@contextmanager
def _handing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    heard: list[int] = []

    def hear(number: int, _frame: object) -> None:
        heard.append(number)
        if len(heard) == 1:
            process.send_signal(signal.SIGTERM)
        else:
            os.killpg(process.pid, signal.SIGKILL)

    former = {number: signal.signal(number, hear) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """Run in the child before spark-submit: on Linux, end it gracefully if this process dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _escaped(value: str) -> str:
    """Escape a value for Java's properties files."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def remove_folder(folder: Path) -> None:
    """Remove the files of a submission, which may contain passwords."""
    shutil.rmtree(folder, ignore_errors=True)
