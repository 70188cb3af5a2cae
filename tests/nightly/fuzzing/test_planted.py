"""The search of Atheris for a planted bug behind three conditions."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.nightly.fuzzing.planted import PLANTED
from tests.nightly.fuzzing.target import unpack

TOP = Path(__file__).parents[3]
EXECUTIONS = 600_000


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(3600)  # mostly 100,000 executions, which take 3 minutes on an idle machine
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs Atheris, which `make campaign fuzz` brings")
@pytest.mark.parametrize("target", PLANTED)
def test_a_planted_bug_is_found(target: str, tmp_path: Path) -> None:
    """The fuzzer begins with the kept corpus, which does not trigger the bug."""
    options = ["--planted", f"-atheris_runs={EXECUTIONS}", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    found = tmp_path / "found"
    found.mkdir()
    command = [sys.executable, "-m", "tests.nightly.fuzzing.guided", target, str(tmp_path / "figures.json"), *options]
    command += [str(found), str(unpack(target, tmp_path / "corpus"))]
    log = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False).stderr
    assert "planted" in log[-5000:]
