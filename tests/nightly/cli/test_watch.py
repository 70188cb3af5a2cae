"""`rmqd test --watch`: the cases are run again when the handler changes, with its new code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import TOP
from tests.waiting import wait_until

pytestmark = pytest.mark.process

CASES = """\
group:
  subscriptions: {orders: "*"}
  handler: {plugin: "watched:handle"}
cases:
  an order:
    messages: [{keys: order-1, body: x}]
    expect: {acked: [1]}
"""


def test_an_edit_runs_the_cases_again(tmp_path: Path) -> None:
    handler, out = tmp_path / "watched.py", tmp_path / "out.txt"
    handler.write_text("def handle(batch):\n    pass\n")
    (tmp_path / "watched.cases.yaml").write_text(CASES)
    with out.open("w") as file:
        watching = subprocess.Popen(
            [sys.executable, "-m", "rmqd", "test", "--watch"], cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(TOP)},
        )  # fmt: skip
    try:
        wait_until(lambda: out.read_text().count("waiting for file changes") == 1, "the first run", 60)
        assert "1 as expected, 0 not" in out.read_text()
        handler.write_text("def handle(batch):\n    raise ValueError('edited')\n")
        wait_until(lambda: out.read_text().count("waiting for file changes") == 2, "the second run", 60)
        assert "watched.py changed" in out.read_text()
        assert "its handler raised ValueError: edited" in out.read_text()
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    finally:
        watching.kill()
        watching.wait()
