"""The demo on Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rmqd.demo.demo_orders import DemoOptions
from rmqd.demo.demo_play import SAMPLE_CONFIG, read_group
from rmqd.plugins.model_options import load_runnable


@pytest.mark.spark
def test_the_demo_group_runs_on_spark_with_the_same_settings() -> None:
    config = read_group(DemoOptions(engine="spark"))

    [(name, settings)] = config.groups.items()
    sample = load_runnable(SAMPLE_CONFIG, environ={}).groups[name]
    assert (settings.engine, sample.engine) == ("spark", "local")
    assert settings.spark is not None
    assert settings.spark.master == "local[2,4]"
    assert (settings.handler, settings.subscriptions) == (sample.handler, sample.subscriptions)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)  # a JVM may start slowly on a busy machine
def test_the_whole_demo_on_spark() -> None:
    """Every order is accounted for, and the view received the reports of Spark's processes."""
    done = subprocess.run(
        [sys.executable, "-m", "rmqd", "demo", "--engine", "spark", "--messages", "60"],
        capture_output=True, text=True, timeout=380, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "group order-mailer on Spark; Spark takes about 15 seconds to start" in done.stdout
    assert "dead letter order-25: not JSON" in done.stdout
    summary = done.stdout.rpartition("rmqd demo ran for")[2]
    assert "  sent                       60  " in summary, done.stdout
    assert "not accounted for" not in summary, done.stdout
    assert "not handled" not in summary, done.stdout
    assert "at the first attempt" in summary, done.stdout  # known only from the reports
    assert done.stderr == ""
