"""Twenty releases of new code to running groups at 500 messages a second, with restarts and canaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.campaigns.releases import Releases
from tests.rocketmq import RealCluster
from tests.waiting import wait_until

ROUNDS = 20
LONGEST_SECONDS = 300


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_releases_lose_and_repeat_nothing(rocketmq: RealCluster, topic: str, tmp_path: Path) -> None:
    """Each round restarts two groups with new code and sets their canaries' share to half of the keys and back to none.

    At the end the canary is promoted. The orderly group keeps its order. The third group keeps its code, and its shadow
    must report no differences.
    """
    releases = Releases(rocketmq, tmp_path, topic, per_second=500)
    versions = [f"version-{number}" for number in range(ROUNDS)]
    differing: list[float] = []

    def release(rmqd: RmqdProcess) -> None:
        for version in versions:
            for group in releases.groups:
                releases.write(group, version)
                assert rmqd.post(f"/api/v1/groups/{group}/restart", LONGEST_SECONDS)["restarted"] == [group]
                releases.wait_for(group, version)
                assert rmqd.post(f"/api/v1/groups/{group}/canary?share=50%25")["updated"] == [group]
                releases.wait_for(group, "canary")
                assert rmqd.post(f"/api/v1/groups/{group}/canary?share=0%25")["updated"] == [group]
        for group in releases.groups:
            wait_until(lambda group=group: _acked_by_canary(rmqd, group), "its messages are counted")  # type: ignore[misc]
            assert rmqd.post(f"/api/v1/groups/{group}/canary", LONGEST_SECONDS)["restarted"] == [group]
        assert rmqd.metric("rmqd_shadow_messages_total", result="acked") > 0
        differing.append(rmqd.metric("rmqd_shadow_differences_total"))

    releases.run(release)
    for group in releases.groups:
        assert set(releases.versions(group)) == {"1", "canary", *versions}
    assert releases.versions(releases.untouched) == ["1"]
    assert releases.versions("shadow") == ["canary"]
    assert differing == [0]


def _acked_by_canary(rmqd: RmqdProcess, group: str) -> float:
    return rmqd.metric("rmqd_messages_handled_total", group=group, variant="canary", result="acked")
