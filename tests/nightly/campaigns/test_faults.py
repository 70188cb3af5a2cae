"""Short fault runs for every run of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.nightly.campaigns.fault_kinds import KINDS
from tests.nightly.campaigns.fault_series import FaultSeries, Figures, cells
from tests.nightly.campaigns.faults import FaultPlan, FaultResult, Faults
from tests.rocketmq import ClusterSpec, NotEmbeddedError, RealCluster
from tests.rocketmq.fixtures import fresh_name

PLAN = FaultPlan(
    seed=5,
    per_second=200,
    calm_messages=200,
    outage_seconds=2,
    damaged_share=0.05,
    settings={"persist_consumer_offset_interval": "1s"},  # every run waits for it more than once
)


@pytest.fixture(scope="module")
def two_masters() -> Iterator[RealCluster]:
    """A cluster with two masters. A test may pause one of them with SIGSTOP."""
    try:
        cluster = RealCluster.start(ClusterSpec(brokers=2, heap="384m"))
    except NotEmbeddedError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


def short_run(fault: str, cluster: RealCluster, directory: Path) -> FaultResult:
    """Run a fault, and check that every promise was kept."""
    result = Faults(KINDS[fault], PLAN, cluster, directory / "run", fresh_name(fault, "topic")).run()
    print(result.report())
    assert result.passed, result.report()
    return result


@pytest.mark.slow
def test_a_broker_is_found_on_another_port(rocketmq_faulty: RealCluster, tmp_path: Path) -> None:
    """Its route still has the same broker name."""
    short_run("another_port", rocketmq_faulty, tmp_path)


@pytest.mark.slow
@pytest.mark.rocketmq
def test_a_silent_broker_does_not_delay_the_other_broker(two_masters: RealCluster, tmp_path: Path) -> None:
    """The other broker's messages are handled as before."""
    short_run("silent_broker", two_masters, tmp_path)


@pytest.mark.slow
def test_a_bad_line_loses_nothing(rocketmq_faulty: RealCluster, tmp_path: Path) -> None:
    """Frames are cut, delayed and reset."""
    result = short_run("bad_line", rocketmq_faulty, tmp_path)

    assert sum(result.damaged.values()) >= 20


@pytest.mark.process
def test_a_finished_series_adds_its_row_once(tmp_path: Path) -> None:
    """A series whose runs are all done runs nothing. It passes only if each run passed."""
    page = tmp_path / "page.md"
    page.write_text("**faults**: so and so\n\n| date |\n|---|\n")
    for number, passed in ((1, True), (2, False)):
        place = tmp_path / f"another_port-{number}"
        place.mkdir()
        figures = Figures(number, passed, 10, 0, {}, 0, 0, 0.5, 2.0, {}, [], 30.0)
        (place / "figures.json").write_text(json.dumps(asdict(figures)))

    for times, expected in ((1, True), (2, False)):
        series = FaultSeries(["another_port"], times, 0, tmp_path, page)
        series.run()
        assert series.passed == expected

    assert page.read_text().count("another_port") == 1


def test_a_row_combines_all_runs_of_a_fault() -> None:
    """Counts are added up; times are the maximum."""
    one = Figures(1, True, 10, 0, {"x": 2}, 0, 1, 0.5, 2.0, {}, [], 30.0)
    other = Figures(2, False, 20, 1, {"x": 1, "y": 5}, 1, 0, 1.5, 1.0, {}, ["broken"], 40.4)

    assert cells("bad_line", [one, other]) == [
        *("bad_line", "1, 2", 30, "70", 1, "5: y; 3: x", "1, 1", "1.5 s", "2.0 s", "broken"),
    ]
