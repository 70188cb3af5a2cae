"""A short campaign of kills on the embedded broker without a Spark cluster, and wrong results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rocketmq import RealCluster
from tests.rocketmq.release import EMBEDDED
from tests.rocketmq.spec import ClusterSpec
from tests.spark.needed import need

need("pyspark", "pyarrow")

from tests.nightly.campaigns.spark_kills import BROKER, DRIVER, Kills, KillsPlan, KillsResult  # noqa: E402


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)  # the start of a JVM, twice, on a machine that may be busy
def test_a_killed_driver_loses_nothing(tmp_path: Path) -> None:
    """Its group restarts from the checkpoint."""
    plan = KillsPlan(seed=2, messages=1500, victims=(DRIVER,), calm_seconds=(0.0, 0.5), archives=False)
    with RealCluster.start(ClusterSpec(version=EMBEDDED), tmp_path / "cluster") as cluster:
        result = Kills(plan, cluster, tmp_path / "run").run()
    print(result.report())
    assert result.passed, result.report()


RESULT = KillsResult(
    plan=KillsPlan(seed=1, messages=3, victims=(DRIVER, BROKER)),
    killed=["driver of kills-handling", "broker"],
    lost=[],
    repeated=5,
    archived=Counter(["m0", "m1", "m2"]),
    ahead=[],
    looks=9,
    generations={"kills-handling": 1, "kills-archiving": 1},
    lag={"kills-handling": 0},
    seconds=1.0,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": ["m1"]},
        {"archived": Counter(["m0", "m1"])},
        {"archived": Counter(["m0", "m1", "m2", "m2"])},
        {"ahead": ["kills-handling: a queue"]},
        {"generations": {"kills-handling": 2, "kills-archiving": 1}},
        {"lag": {"kills-handling": 1}},
        {"killed": ["broker"]},
        {"problems": ["rmqd ended with 1"]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_result_fails_the_campaign(wrong: dict[str, object]) -> None:
    assert RESULT.passed
    assert not replace(RESULT, **wrong).passed  # type: ignore[arg-type]  # each is of its field's type
