"""`make nightly`: a part resumes, counts its cases, and has one row of the page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tests.nightly.__main__ as night
from tests.nightly.campaigns.record import DIRTY, commit
from tests.rocketmq.node import process_state
from tests.waiting import wait_until

TOP = Path(__file__).parents[2]
FAILS_ONCE = """\
from pathlib import Path

def test_passes(): ...

def test_fails_once():
    mark = Path("mark")
    was_there = mark.exists()
    mark.touch()
    assert was_there
"""
PAGE = "# Nightly tests\n\n| part | result |\n|---|---|\n"


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> night.Part:
    """A part whose second test passes only at its second attempt."""
    monkeypatch.setattr(night, "STATE", tmp_path / "state")
    monkeypatch.setattr(night, "PAGE", tmp_path / "nightly.md")
    monkeypatch.setattr(night, "commit", lambda: "c0ffee")
    (tmp_path / "nightly.md").write_text(PAGE)
    (tmp_path / "mark").unlink(missing_ok=True)
    cases = tmp_path / "test_cases.py"
    cases.write_text(FAILS_ONCE)
    arguments = ("pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--confcutdir={tmp_path}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(night, "TOP", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    return night.Part("cases", (*arguments, "-c", "/dev/null", str(cases)), "two cases")


@pytest.mark.process
def test_a_failed_part_resumes_at_the_test_that_failed(part: night.Part) -> None:
    first = night.run(part)
    assert (first.passed, first.cases, first.failed) == (False, 2, 1)
    second = night.run(part)
    assert (second.passed, second.cases, second.failed) == (True, 2, 0)
    assert "1 passed, 1 deselected" in (part.folder / "log").read_text()
    assert second.wall_seconds > first.wall_seconds


@pytest.mark.process
def test_a_part_that_passed_runs_again_only_at_another_commit_or_with_another_python(
    part: night.Part, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    night.run(part)
    night.run(part)
    night.run(part)
    assert "cases: passed before at c0ffee" in capsys.readouterr().out
    monkeypatch.setattr(night, "commit", lambda: "deca1")
    assert night.run(part).commit == "deca1"
    monkeypatch.setattr(sys, "version", "another")
    assert night.run(part).passed
    assert "2 passed" in (part.folder / "log").read_text()
    assert "passed before" not in capsys.readouterr().out


@pytest.mark.process
def test_a_failed_subtest_fails_the_part_each_time(part: night.Part) -> None:
    cases = Path(part.arguments[-1])
    cases.write_text(
        "def test_rows(subtests):\n    for row in 1, 2:\n        with subtests.test():\n            assert row != 2\n"
    )
    assert not night.run(part).passed
    assert not night.run(part).passed


@pytest.mark.process
@pytest.mark.parametrize("text", ["", "import pytest\n\n@pytest.mark.skip\ndef test_skipped(): ...\n"])
def test_a_part_that_ran_no_test_does_not_pass(part: night.Part, text: str) -> None:
    Path(part.arguments[-1]).write_text(text)
    assert not night.run(part).passed


@pytest.mark.process
def test_files_that_change_during_a_run_are_seen(part: night.Part, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mark").touch()
    commits = iter(["c0ffee", "c0ffee-dirty", "c0ffee", "c0ffee"])
    monkeypatch.setattr(night, "commit", lambda: next(commits))
    assert night.run(part).commit == "c0ffee-dirty"
    assert night.run(part).commit == "c0ffee"


@pytest.mark.process
def test_without_git_no_commit_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part then starts again, as after changes."""
    monkeypatch.setenv("GIT_DIR", os.devnull)
    assert commit() == DIRTY


def test_a_killed_part_keeps_its_passed_tests(part: night.Part, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> int:
        (part.folder / "passed").write_text("test_cases.py::test_passes\n")
        raise SystemExit

    monkeypatch.setattr(night, "_call", killed)
    with pytest.raises(SystemExit):
        night.run(part)
    night.Figures.load(part)
    assert (part.folder / "passed").exists()


def test_rows_are_replaced_and_stay_in_the_order_of_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "nightly.md"
    page.write_text(PAGE)
    monkeypatch.setattr(night, "PAGE", page)
    for number in (2, 0, 1, 0):
        night.record(night.PARTS[number], night.Figures("c0ffee", passed=number > 0))
    rows = page.read_text().removeprefix(PAGE).splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [part.name for part in night.PARTS[:3]]
    assert [" | failed | " in row for row in rows] == [True, False, False]


NIGHT = """\
from pathlib import Path
import tests.nightly.__main__ as night

night.STATE, night.TOP, night.PARTS = Path("state").absolute(), Path(), (night.Part("waits", ("waits",), ""),)
night.run_guarded([])
"""
WAITS = "import os, time, pathlib; print(os.getpid(), flush=True); time.sleep(1000)"


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_parts_end_with_the_night(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    log, environment = tmp_path / "state" / "waits" / "log", {**os.environ, "PYTHONPATH": f"{TOP}:{tmp_path}"}
    with subprocess.Popen([sys.executable, "-c", NIGHT], cwd=tmp_path, env=environment) as started:
        pid = int(wait_until(lambda: log.read_text() if log.exists() else "", "the part has started"))
        started.send_signal(number)
    wait_until(lambda: process_state(pid) is None, "the part has ended")


@pytest.mark.process
def test_parts_of_two_lanes_run_at_the_same_time(
    part: night.Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")  # each end waits for the other
    (tmp_path / "waits.py").write_text('open("pipe").read()')
    (tmp_path / "computes.py").write_text('open("pipe", "w").close()')
    parts = night.Part("waits", ("waits",), ""), night.Part("computes", ("computes",), "", lane=night.Lane.COMPUTES)
    monkeypatch.setattr(night, "PARTS", parts)
    assert night.main([]) == 0


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        night.main(["sparks"])
    assert "sparks is not a part; expected rocketmq, spark," in capsys.readouterr().err
