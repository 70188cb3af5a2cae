"""The second try of .ci/run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = (Path(__file__).parents[2] / ".ci" / "run").read_text()
IMPORTED_AT_THE_SECOND_TRY = """\
from pathlib import Path

mark = Path("mark")
was_there = mark.exists()
mark.touch()
assert was_there

def test_passes(): ...
"""


@pytest.mark.process
@pytest.mark.parametrize("arguments", ["", "-n 2 --dist loadfile"])
def test_a_module_that_cannot_be_imported_at_first_hides_no_other_failure(tmp_path: Path, arguments: str) -> None:
    """No test of the part has run by then, so the second try runs all of them."""
    function = re.search(r"^tests\(\) \{.*?^\}", RUN, re.MULTILINE | re.DOTALL)
    assert function is not None
    make = tmp_path / "make"
    make.write_text(
        f'#!/bin/sh\nshift\neval exec "{sys.executable} -m pytest -c /dev/null --rootdir . ${{1#ARGS=}} ."\n'
    )
    make.chmod(0o755)
    (tmp_path / "test_imported_later.py").write_text(IMPORTED_AT_THE_SECOND_TRY)
    (tmp_path / "test_failing.py").write_text("def test_fails(): assert False\n")
    script = f"set -euo pipefail; MOST_SECONDS=60 logs=.\n{function[0]}\ntests part '{arguments}'"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "1 failed, 1 passed" in done.stdout
