"""Two programs with a pull consumer and a Java push consumer share a group. They join, leave and are killed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.conformance import behaviour
from tests.integration.load import Load
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.waiting import wait_until

PATIENCE_SECONDS = 90
RATE = 50


class PullMember:
    """`pull_member.py` in a separate process."""

    def __init__(self, cluster: RealCluster, topic: str, group: str, path: Path) -> None:
        arguments = [cluster.nameserver, topic, group, str(path), path.name]
        module = "tests.nightly.integration.pull_member"
        self.process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        with self.process.stdout as said:
            assert said.readline() == b"started\n"

    def leave(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE_SECONDS) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@behaviour(
    "rebalance",
    (
        "Programs that poll share a group with push consumers, and lose no message when members join, "
        "leave and are killed"
    ),
    java=(
        "DefaultLitePullConsumer begins at once, and messages that the previous owner did not commit are"
        " delivered again"
    ),
    rmqd=("PullConsumer releases a queue once the program has committed the messages that it polled, or after 5 s"),
    checked="two programs and a Java push consumer keep ledgers",
)
def test_pull_consumers_and_a_java_member_lose_nothing(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    names = iter(range(100))
    ledgers: list[Path] = []

    def new_ledger(kind: str) -> Path:
        ledgers.append(tmp_path / f"{kind}{next(names)}")
        return ledgers[-1]

    def pull_member() -> PullMember:
        return PullMember(rocketmq, topic, group, new_ledger("pull"))

    def finished() -> Counter[str]:
        return Counter(entry.key for entry in ledger.read(*ledgers) if entry.event == ledger.FINISH)

    def is_handled_for_a_while() -> None:
        """Wait for enough handled messages that each member had some of them."""
        before = finished().total()
        wait_until(lambda: finished().total() > before + 3 * RATE, "messages are handled", PATIENCE_SECONDS)

    def joined(members: int) -> None:
        wait_until(lambda: len(offsets.members(rocketmq, group)) == members, f"{members} members", PATIENCE_SECONDS)
        is_handled_for_a_while()

    one, two = pull_member(), pull_member()
    try:
        with Load(rocketmq, topic, 1_000_000, per_second=RATE) as load:
            joined(2)
            with start_consumer(PeerOptions(rocketmq.nameserver, topic, new_ledger("java")), group) as java:
                joined(3)
                one.kill()
                joined(2)
                one = pull_member()
                joined(3)
                two.leave()
                joined(2)
                two = pull_member()
                joined(3)
                java.kill()
            joined(2)
            with start_consumer(PeerOptions(rocketmq.nameserver, topic, new_ledger("java")), group) as java:
                joined(3)
                assert java.stop() in (0, 143)
            joined(2)
        wait_until(lambda: finished().keys() >= load.sent.keys(), "all that was sent is handled", PATIENCE_SECONDS)
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed", PATIENCE_SECONDS)
        one.leave()
        two.leave()
    finally:
        one.kill()
        two.kill()
    repeated = sum(count - 1 for count in finished().values())
    assert repeated < 4 * RATE, "only uncommitted messages of a killed member, or of Java at a hand-over, are repeated"
