"""Some random histories of the offset store and of hand-overs; `make campaign histories` runs thousands."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize(("kind", "count"), [("offsets", 300), ("hand_over", 40)])
def test_histories(kind: str, count: int) -> None:
    """The seeds are the same each time. A failed history prints its seed, which repeats it."""
    command = [sys.executable, "-m", "tests.nightly.consumer.histories", kind, "--count", str(count), "--seconds", "25"]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "0"}, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["histories"] > 0
