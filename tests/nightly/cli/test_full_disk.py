"""Commands whose output cannot be written: each way of printing ends with one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rmqd.errors import ExitCode

pytestmark = pytest.mark.process


@pytest.mark.parametrize("words", ["lag -n 127.0.0.1:1 -o json", "schema"])
def test_output_that_cannot_be_written_is_reported_in_one_line(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rmqd", *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == ExitCode.FAILURE
    assert ended.stderr.endswith("rmqd: the output cannot be written: No space left on device\n")
    assert "Traceback" not in ended.stderr
