"""`--forks`: every test runs once, and forks report the same as pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
CASES = """\
import os, pytest

@pytest.fixture
def broken():
    raise ValueError("no")

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_has_no_fixture(broken): pass
def test_is_skipped(): pytest.skip("why")
def test_crashes():
    if "CRASH" in os.environ:
        os._exit(3)
"""


FORGETS = """\
async def forgotten(): pass

def test_forgets():
    circle = [forgotten()]
    circle.append(circle)
"""


def run(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run three modules of these cases in two forks."""
    for name in "abc":
        (folder / f"test_{name}.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.forks", "--forks", "2", "-c", os.devnull, *options]
    command += [f"--rootdir={folder}", "-p", "no:cacheprovider", "-rs", str(folder)]
    return subprocess.run(
        command, cwd=TOP, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.process
def test_every_test_is_reported_once(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "3 failed, 6 passed, 3 skipped, 3 errors" in done.stdout
    assert done.stdout.count("assert 1 == 2") == 2 * 3  # the line of code, and the compared values
    assert done.stdout.count("SKIPPED [1]") == 3


@pytest.mark.process
def test_option_x_ends_the_run_at_the_first_failure(tmp_path: Path) -> None:
    done = run(tmp_path, "-x")
    assert done.returncode == 1
    assert "stopping after 1 failures" in done.stdout


@pytest.mark.process
def test_a_crash_names_the_test(tmp_path: Path) -> None:
    done = run(tmp_path, CRASH="1")
    assert done.returncode == 1
    assert "a fork ended with 3 in test_" in done.stdout
    assert "::test_crashes" in done.stdout


@pytest.mark.process
def test_an_unawaited_coroutine_in_a_reference_cycle_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_forgets.py").write_text(FORGETS)
    done = run(tmp_path, "-W", "error", "-k", "forgets")
    assert "1 passed, 15 deselected, 1 error" in " ".join(done.stdout.split()), done.stdout
    assert "coroutine 'forgotten' was never awaited" in done.stdout
