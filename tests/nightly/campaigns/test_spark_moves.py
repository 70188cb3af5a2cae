"""A short campaign of moves on the embedded broker, and the detection of repetitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly.campaigns.spark_moves import Moves, MovesPlan, begun_twice
from tests.rocketmq import RealCluster
from tests.rocketmq.ledger import FINISH, START, Entry
from tests.rocketmq.release import EMBEDDED
from tests.rocketmq.spec import ClusterSpec


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)  # the start of a JVM, twice, on a machine that may be busy
def test_a_group_moves_to_spark_and_back_under_load(tmp_path: Path) -> None:
    """The moves are reloads: nothing is lost or handled twice."""
    plan = MovesPlan(seed=1, moves=2, per_second=100, stay_seconds=(0.5, 1.0), ways=("reload",))
    with RealCluster.start(ClusterSpec(version=EMBEDDED), tmp_path / "cluster") as cluster:
        result = Moves(plan, cluster, tmp_path / "run").run()
    print(result.report())
    assert result.passed, result.report()
    assert result.failed
    assert [leg.engine for leg in result.legs] == ["local", "spark", "local"]


def test_attempts_that_begin_twice_are_found() -> None:
    """A retry is another attempt, and messages of an interrupted member are excluded."""

    def entry(event: str, key: str, member: str, at: int, times: int = 0) -> Entry:
        return Entry(event, key, "broker-a", 0, 7, member, at, times)

    first, again = entry(START, "m1", "0-local", 1), entry(START, "m1", "1-spark", 3)
    entries = [first, entry(FINISH, "m1", "0-local", 2), again, entry(START, "m2", "0-local", 4)]
    assert begun_twice(entries) == [(first, again)]
    assert begun_twice(entries, cut={"0-local"}) == []
    assert begun_twice([first, entry(START, "m1", "1-spark", 3, times=1)]) == []
