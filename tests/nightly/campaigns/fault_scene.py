"""The surroundings of a fault: a cluster, continuous messages, two members, and their records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.integration.load import Load
from tests.nightly.campaigns.bad_line import BadLine
from tests.nightly.campaigns.commits import CommitWatch, Place
from tests.nightly.campaigns.members import RmqdMember
from tests.rocketmq import ClusterError, RealCluster, ledger, offsets, rpc
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

GO_ON_SECONDS = 90.0  # time for a member to find brokers: routes are refreshed every 30 s, and each try has a deadline
GO_ON_MESSAGES = 100
LIFT_SECONDS = 60.0
KEYS_OF_A_BROKER = 10**6
IDLE_MESSAGES = 20


@dataclass(slots=True)
class Scene:
    """The run as its fault sees it. On each broker `topic` has `queues` loaded queues and an idle one."""

    cluster: RealCluster
    group: str
    topic: str
    queues: int
    directory: Path
    outage_seconds: float
    """The duration of a fault that does not end itself."""
    damaged_share: float = 0.01
    """The share of damaged frames on a bad line."""
    line: BadLine | None = None
    """The line between the members and the first broker, if the fault has one."""
    members: dict[str, RmqdMember] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    """By broker name."""
    watch: CommitWatch | None = None
    idle: list[str] = field(default_factory=list)
    """The keys in the idle queues, which get no later messages."""
    windows: list[tuple[str, float, float]] = field(default_factory=list)
    """Periods in which members must consume from a broker despite the fault: its name, begin and end (Unix)."""
    tail: ledger.Tail = field(default_factory=ledger.Tail)

    # --- sending

    @contextlib.contextmanager
    def sending(self, per_second: float) -> Iterator[None]:
        """Send to every broker at this rate until the end of the block."""
        # a message stored on one broker only is lost if the controller elects another master
        accepted = (rpc.SUCCESS,) if self.cluster.spec.controller else rpc.STORED
        names = sorted({node.spec.broker_name for node in self.cluster.brokers})
        with contextlib.ExitStack() as stack:
            for number, name in enumerate(names):
                load = Load(
                    self.cluster,
                    self.topic,
                    (number + 1) * KEYS_OF_A_BROKER,
                    first=number * KEYS_OF_A_BROKER,
                    per_second=per_second,
                    queues=self.queues,
                    broker=partial(self.master, name),
                    accepted=accepted,
                )
                self.loads[name] = stack.enter_context(load)
            yield

    def master(self, broker_name: str) -> str:
        """Return the address of a broker name's master. Raises ClusterError if there is none."""
        for node in self.cluster.masters:
            if node.spec.broker_name == broker_name:
                return node.address
        raise ClusterError(f"{broker_name} has no master")

    def sent(self) -> set[str]:
        """Return every key that a broker acknowledged."""
        return {key for load in self.loads.values() for key in list(load.sent)} | set(self.idle)

    def send_idle(self) -> None:
        """Send a few messages to one more queue of each broker, and wait until they are committed."""
        for name in self.loads:
            with Producer(self.master(name), self.topic) as producer:
                for _ in range(IDLE_MESSAGES):
                    key = f"idle{len(self.idle)}"
                    producer.send(key=key, queue=self.queues)
                    self.idle.append(key)
        places = [Place(self.topic, name, self.queues) for name in self.loads]
        wait_until(
            lambda: all(self.highest().get(place, 0) >= IDLE_MESSAGES for place in places), "the idle is committed", 60
        )

    # --- what members did

    def finished(self) -> set[str]:
        """Return the keys of all finished messages."""
        return self.tail.finished(self.ledgers())

    def ledgers(self) -> list[Path]:
        """Return the ledgers of all members."""
        return sorted(self.directory.glob("*.ledger"))

    def highest(self) -> Mapping[Place, int]:
        """Return the highest commits of the members, by queue."""
        assert self.watch is not None
        return self.watch.highest()

    def goes_on(self, *brokers: str) -> None:
        """Wait until members handle new messages of each of these brokers (default: all)."""
        before = {name: set(self.loads[name].sent) for name in brokers or self.loads}
        for name in before:
            what = f"{GO_ON_MESSAGES} messages that were sent to {name} from then on are handled"
            wait_until(partial(self._has_handled_more, name, before[name]), what, GO_ON_SECONDS)

    def _has_handled_more(self, name: str, before: set[str]) -> bool:
        return len((self.loads[name].sent.keys() - before) & self.finished()) >= GO_ON_MESSAGES

    @contextlib.contextmanager
    def while_others_go_on(self, *brokers: str) -> Iterator[None]:
        """Members must consume from these brokers within the block. Their longest standstill in it is a figure."""
        begin = time.time()
        yield
        self.windows += [(name, begin, time.time()) for name in brokers]

    def lasts(self) -> None:
        """Wait for the duration of the fault."""
        time.sleep(self.outage_seconds)

    # --- offsets at the brokers

    def below(self, least: Mapping[Place, int]) -> list[str]:
        """Return the queues with a lower offset at the broker."""
        try:
            stored = offsets.committed(self.cluster, self.group, self.topic)
        except (OSError, ClusterError) as error:
            return [str(error)]
        at = {Place(self.topic, queue.broker, queue.queue_id): offset for queue, offset in stored.items()}
        return [
            f"{place} is stored at {at.get(place, 0)}, and {offset} was committed"
            for place, offset in least.items()
            if at.get(place, 0) < offset
        ]

    def wait_lifted(self) -> float:
        """Wait until the brokers have all offsets that members committed. Return the seconds."""
        begin, least = time.monotonic(), self.highest()
        try:
            wait_until(lambda: not self.below(least), "brokers have what members have committed", LIFT_SECONDS)
        except AssertionError as error:
            error.add_note("\n".join(self.below(least)))
            raise
        return time.monotonic() - begin
