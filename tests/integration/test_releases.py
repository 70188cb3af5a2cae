"""New code for a running group: `rmqd restart` under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.releases import Releases
from tests.integration.rmqd_process import RmqdProcess
from tests.rocketmq import RealCluster

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
