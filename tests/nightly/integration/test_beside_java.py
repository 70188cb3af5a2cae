"""rmqd's and Java's members of one group that is popped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, release
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.smoke.test_java_member import FAIL_EVERY, check_shared_load


@pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no POP")
def test_rmqd_and_java_pop_from_one_group(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """What one of them fails at may be popped by the other; what was acknowledged comes to neither again."""
    rocketmq.set_consume_mode(topic, group, "POP")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    settings = ledger_group(topic, ours, "rmqd", handler_options={"fail_every": FAIL_EVERY}, consume_mode="pop")
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: settings}) as rmqd:
        rmqd.wait_ready()
        peer = PeerOptions(rocketmq.nameserver, topic, theirs)
        with start_consumer(peer, group, pop=True, fail_every=FAIL_EVERY) as java:
            check_shared_load(rocketmq, topic, ours, theirs)
            assert {event["event"] for event in rmqd.events() if event["level"] == "error"} == {"handler.failed"}
            assert java.stop() in (0, 143)
        assert rmqd.terminate()[0] == 0
