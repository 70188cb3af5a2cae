"""Running a stand-in for spark-submit: signals are passed on, and the exit code says how the group ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rmqd.errors import RmqdError
from rmqd.spark.submit.submission import find_spark_submit
from tests.nightly.spark.test_submission import submission
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

SECONDS: Final = 30.0
OURS: Final = """
import pickle, sys
from pathlib import Path
from rmqd.spark.submit.submission import run_spark_submit
submission, program, folder = pickle.loads(sys.stdin.buffer.read())
sys.exit(run_spark_submit(submission, program, Path(folder)))
"""
# Ends normally at SIGTERM, as a driver does, but with the exit code of a JVM that failed.
IN_ORDER: Final = """
import signal, sys, time
from pathlib import Path
def end(*_):
    Path("ended").write_text("0")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
Path("ready").write_text(" ".join(sys.argv))
while True:
    time.sleep(60)
"""
STUBBORN: Final = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: Path("heard").touch())
Path("ready").touch()
while True:
    time.sleep(60)
"""


class Running:
    """`run_spark_submit` in a separate process, with a stand-in for spark-submit."""

    def __init__(self, folder: Path, script: str) -> None:
        import pickle

        self.folder = folder / "scratch"
        self.folder.mkdir()
        program = folder / "spark-submit"
        program.write_text(f"#!{sys.executable}\n{textwrap.dedent(script)}")
        program.chmod(0o755)
        self.process = subprocess.Popen([sys.executable, "-c", OURS], stdin=subprocess.PIPE)
        assert self.process.stdin is not None
        self.process.stdin.write(pickle.dumps((submission(folder), str(program), str(self.folder))))
        self.process.stdin.close()

    def await_file(self, name: str) -> str:
        """Return the content of a file of the stand-in."""
        wait_until((self.folder / name).exists, f"there is {name}", SECONDS)
        return (self.folder / name).read_text()


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """The processes that a test started, killed at its end."""
    started: list[Running] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_group_normally_with_exit_code_0(
    tmp_path: Path, running: list[Running], number: signal.Signals
) -> None:
    running.append(one := Running(tmp_path, IN_ORDER))
    assert "--master spark://spark-1:7077" in one.await_file("ready")

    one.process.send_signal(number)

    assert one.process.wait(SECONDS) == 0


def test_a_second_signal_stops_it_at_once(tmp_path: Path, running: list[Running]) -> None:
    running.append(one := Running(tmp_path, STUBBORN))
    one.await_file("ready")
    one.process.send_signal(signal.SIGTERM)
    one.await_file("heard")

    one.process.send_signal(signal.SIGTERM)

    assert one.process.wait(SECONDS) == 1


def test_spark_submit_does_not_outlive_its_parent(tmp_path: Path, running: list[Running]) -> None:
    running.append(one := Running(tmp_path, IN_ORDER))
    one.await_file("ready")

    one.process.kill()

    assert one.await_file("ended") == "0"


def test_without_a_group_the_exit_code_is_that_of_spark_submit(tmp_path: Path, running: list[Running]) -> None:
    running.append(one := Running(tmp_path, "import sys; sys.exit(3)"))

    assert one.process.wait(SECONDS) == 3


def test_spark_submit_is_found_by_option_then_spark_home_then_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("named", "home"):
        program = tmp_path / name / "bin" / "spark-submit"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "home"))

    assert find_spark_submit(str(tmp_path / "named")) == str(tmp_path / "named" / "bin" / "spark-submit")
    assert find_spark_submit() == str(tmp_path / "home" / "bin" / "spark-submit")
    with pytest.raises(
        RmqdError, match=r"^--spark-home is /nowhere, but there is no program /nowhere/bin/spark-submit$"
    ):
        find_spark_submit("/nowhere")
    monkeypatch.chdir(tmp_path)
    assert find_spark_submit("named") == str(tmp_path / "named" / "bin" / "spark-submit")
    monkeypatch.delenv("SPARK_HOME")
    assert os.access(find_spark_submit(), os.X_OK)
