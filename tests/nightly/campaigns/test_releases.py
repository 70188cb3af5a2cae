"""New code for a running group under load: `rmqd restart`, and a canary."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.campaigns.releases import Releases
from tests.rocketmq import RealCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.process


def test_a_restart_replaces_the_code_of_one_group(rocketmq: RealCluster, topic: str, tmp_path: Path) -> None:
    """Nothing is lost or repeated, and the order is kept. The second restart replaces a process by a process.

    tests/nightly/campaigns/releases.py does that twenty times.
    """
    releases = Releases(rocketmq, tmp_path, topic, per_second=100)
    concurrent, orderly = releases.groups

    def restart(rmqd: RmqdProcess) -> None:
        for group, version in ((orderly, "v2"), (concurrent, "ver2"), (orderly, "vers3")):
            releases.write(group, version)
            assert rmqd.post(f"/api/v1/groups/{group}/restart")["restarted"] == [group]
            releases.wait_for(group, version)

    releases.run(restart)
    assert releases.versions(orderly) == ["1", "v2", "vers3"]
    assert releases.versions(concurrent) == ["1", "ver2"]
    assert releases.versions(releases.untouched) == ["1"]


def _acked_by_canary(rmqd: RmqdProcess, group: str) -> float:
    return rmqd.metric("rmqd_messages_handled_total", group=group, variant="canary", result="acked")


def test_a_canary_gets_a_share_and_is_promoted(rocketmq: RealCluster, topic: str, tmp_path: Path) -> None:
    """Nothing is lost or repeated, and the order is kept. A shadow only counts."""
    releases = Releases(rocketmq, tmp_path, topic, per_second=100)
    counted: dict[str, float] = {}

    def release(rmqd: RmqdProcess) -> None:
        for group in releases.groups:
            assert rmqd.post(f"/api/v1/groups/{group}/canary?share=50%25")["updated"] == [group]
            releases.wait_for(group, "canary")
            wait_until(lambda group=group: _acked_by_canary(rmqd, group), "its messages are counted")  # type: ignore[misc]
            assert rmqd.post(f"/api/v1/groups/{group}/canary?share=0%25")["updated"] == [group]
            assert rmqd.post(f"/api/v1/groups/{group}/canary")["restarted"] == [group]
        wait_until(lambda: rmqd.metric("rmqd_shadow_messages_total", result="acked") > 0, "the shadow is called")
        counted["differing"] = rmqd.metric("rmqd_shadow_differences_total")

    releases.run(release)
    for group in releases.groups:
        assert releases.versions(group) == ["1", "canary"]
    assert releases.versions(releases.untouched) == ["1"]
    assert releases.versions("shadow") == ["canary"]
    assert counted["differing"] == 0
