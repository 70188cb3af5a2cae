"""A short campaign of dead-letter replays for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly.campaigns.dlq_replay import DlqReplay, DlqReplayPlan
from tests.rocketmq import RealCluster


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_killed_replay_sends_each_letter_once(rocketmq: RealCluster, tmp_path: Path, *, orderly: bool) -> None:
    plan = DlqReplayPlan(
        f"short-{'orderly' if orderly else 'concurrent'}",
        11,
        letters=600,
        kills=2,
        orderly=orderly,
        slots=("rmqd-a",),
        watch_seconds=3,
    )

    result = DlqReplay(plan, rocketmq, tmp_path / "run").run()

    print(result.report())
    assert result.passed, result.report()
    assert result.ways == ("send_back" if orderly else "retry_topic",)
