"""Groups with rmqd and Java members: a group that pops, and a group that moves from Java to rmqd and back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, ledger, offsets, release
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.smoke.test_java_member import FAIL_EVERY, PATIENCE_SECONDS, check_shared_load, finished
from tests.waiting import wait_until

HANDLE_MILLIS = 50


@pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no POP")
def test_rmqd_and_java_pop_from_one_group(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """Either member may pop a failed message again. Acknowledged messages are not redelivered."""
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


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
def test_a_group_moves_from_java_and_back_under_load(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, mode: str
) -> None:
    """The steps of docs/from-java.md lose no message, and rmqd's stop repeats none.

    A starting Java member repeats the batches in flight, because it waits for the previous owner only if queues are
    locked.
    """
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    settings = ledger_group(topic, ours, "rmqd", handler_options={"seconds": HANDLE_MILLIS / 1000}, consume_mode=mode)
    peer = PeerOptions(rocketmq.nameserver, topic, theirs)
    options = {"orderly": mode == "orderly", "handle_millis": HANDLE_MILLIS}

    def handles_more(path: Path) -> None:
        enough = len(finished(path)) + 200
        wait_until(lambda: len(finished(path)) > enough, f"{path.name} handles what comes", PATIENCE_SECONDS)

    def owns(number: int) -> bool:
        owned = [queue for queue in rmqd.queues(group) if queue["topic"] == topic and not queue["is_retry"]]
        return len(owned) == number

    with (
        Load(rocketmq, topic, 100_000, per_second=80) as load,
        start_consumer(peer, group, **options) as before,
    ):
        handles_more(theirs)
        with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: settings}) as rmqd:
            rmqd.wait_ready()
            wait_until(lambda: owns(4), "rmqd has half of the queues", PATIENCE_SECONDS)
            assert before.stop() in (0, 143)
            wait_until(lambda: owns(8), "rmqd has all queues", PATIENCE_SECONDS)
            handles_more(ours)
            with start_consumer(peer, group, **options) as after:
                wait_until(lambda: owns(4), "Java has half of the queues", PATIENCE_SECONDS)
                left_at = 0 if mode == "orderly" else time.time_ns() // 1000
                assert rmqd.terminate()[0] == 0
                handles_more(theirs)
                load.stop.set()
                load.wait(PATIENCE_SECONDS)
                wait_until(
                    lambda: finished(ours).keys() | finished(theirs).keys() == load.sent.keys(),
                    "all that was sent is handled",
                    PATIENCE_SECONDS,
                )
                assert after.stop() in (0, 143)
    assert offsets.lag(rocketmq, group, topic) == 0
    first: dict[str, ledger.Entry] = {}
    ends = (entry for entry in ledger.read(ours, theirs) if entry.event == ledger.FINISH)
    repeated = [first[entry.key] for entry in ends if first.setdefault(entry.key, entry) is not entry]
    assert [entry for entry in repeated if entry.member == "rmqd" and entry.at_micros > left_at] == []
