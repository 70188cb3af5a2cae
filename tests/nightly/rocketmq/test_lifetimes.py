"""Clusters of a run live no longer than the tests that use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
RUN = """
alive = {}

def test_uses_none_and_comes_last():
    assert not any(broker.pid for broker in alive.values())

def test_uses_one(rocketmq):
    assert not alive
    alive["one"] = rocketmq.broker
    assert rocketmq.broker.pid

def test_uses_another_with_other_delays(rocketmq_static):
    assert not alive["one"].pid
    alive["static"] = rocketmq_static.broker
    assert rocketmq_static.broker.pid

def test_uses_the_first_again(rocketmq):
    assert alive["one"].pid == rocketmq.broker.pid
"""


@pytest.mark.process
@pytest.mark.slow
def test_a_cluster_ends_with_its_last_test(tmp_path: Path) -> None:
    """Tests of one cluster run in a row, and tests without a cluster run last."""
    (tmp_path / "test_run.py").write_text(RUN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "-p", "tests.rocketmq.fixtures", "-p", "tests.rocketmq.lifetimes"),
            *("-p", "no:rmqd", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)),
        ],
        env={**os.environ, "RMQD_TEST_ROCKETMQ": "embedded", "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )
    passed = [line.split("::")[1].split()[0] for line in done.stdout.splitlines() if " PASSED" in line]
    assert passed == [
        "test_uses_one",
        "test_uses_the_first_again",
        "test_uses_another_with_other_delays",
        "test_uses_none_and_comes_last",
    ], done.stdout + done.stderr
