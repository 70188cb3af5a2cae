"""A short `spark_cluster` campaign: a group is submitted to a cluster, and a worker is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.nightly.campaigns.spark_cluster import ClusterPlan, ClusterResult, SparkCluster

PASSED = ClusterResult(
    ClusterPlan(1, messages=100, kills=1), kills=1, executors=3, lost=0, again=5, committed=100, exit_code=0,
    first_seconds=20, stop_seconds=2, seconds=60,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)  # six JVMs start, on two cores that may be busy
def test_a_submitted_group_survives_the_loss_of_a_worker(tmp_path: Path) -> None:
    result = SparkCluster(ClusterPlan(seed=1, messages=2000, kills=1), tmp_path / "run").run()

    print(result.report())
    assert result.passed, result.report()


@pytest.mark.parametrize(
    "otherwise",
    [{"lost": 1}, {"committed": 99}, {"exit_code": 1}, {"kills": 0}, {"executors": 1}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_wrong_result_fails_the_campaign(otherwise: dict[str, int]) -> None:
    assert PASSED.passed
    assert not replace(PASSED, **otherwise).passed  # type: ignore[arg-type]
