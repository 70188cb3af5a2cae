"""What a fault run has around its fault: a cluster, messages that go on being sent, two members, and what they did."""

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

GO_ON_SECONDS = 90.0  # for a member to find what it needs: its routes are at most 30 s old, and each try has a deadline
GO_ON_MESSAGES = 100
LIFT_SECONDS = 60.0
KEYS_OF_A_BROKER = 10**6
IDLE_MESSAGES = 20


@dataclass(slots=True)
class Scene:
    """The run, as its fault sees it. `topic` has `queues` queues that are sent to on each broker, and an idle one."""

    cluster: RealCluster
    group: str
    topic: str
    queues: int
    directory: Path
    outage_seconds: float
    """How long a fault lasts that has no end of its own."""
    damaged_share: float = 0.01
    """Of the frames on a bad line."""
    line: BadLine | None = None
    """Between the members and the first broker, where the fault has one."""
    members: dict[str, RmqdMember] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    """By the name of the broker."""
    watch: CommitWatch | None = None
    idle: list[str] = field(default_factory=list)
    """The keys in the idle queues, which nothing follows."""
    windows: list[tuple[str, float, float]] = field(default_factory=list)
    """Times in which a broker had to be consumed from, whatever else was broken: its name, begin and end (Unix)."""
    tail: ledger.Tail = field(default_factory=ledger.Tail)

    # --- sending

    @contextlib.contextmanager
    def sending(self, per_second: float) -> Iterator[None]:
        """Send to every broker, at this rate to each, until the end of the block."""
        # a copy on one broker alone is lost with it, where the controller makes another one master
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
        """Where messages for a broker name go. Raises ClusterError where it has no master."""
        for node in self.cluster.masters:
            if node.spec.broker_name == broker_name:
                return node.address
        raise ClusterError(f"{broker_name} has no master")

    def sent(self) -> set[str]:
        """Every key that a broker said it has."""
        return {key for load in self.loads.values() for key in list(load.sent)} | set(self.idle)

    def send_idle(self) -> None:
        """A few messages to one more queue of each broker; return once they are committed."""
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
        """The keys that were handled to the end."""
        return self.tail.finished(self.ledgers())

    def ledgers(self) -> list[Path]:
        """Of every member."""
        return sorted(self.directory.glob("*.ledger"))

    def highest(self) -> Mapping[Place, int]:
        """What members have committed, by queue."""
        assert self.watch is not None
        return self.watch.highest()

    def goes_on(self, *brokers: str) -> None:
        """Wait until messages that are sent from now on are handled, of each of these brokers (all)."""
        before = {name: set(self.loads[name].sent) for name in brokers or self.loads}
        for name in before:
            what = f"{GO_ON_MESSAGES} messages that were sent to {name} from then on are handled"
            wait_until(partial(self._has_handled_more, name, before[name]), what, GO_ON_SECONDS)

    def _has_handled_more(self, name: str, before: set[str]) -> bool:
        return len((self.loads[name].sent.keys() - before) & self.finished()) >= GO_ON_MESSAGES

    @contextlib.contextmanager
    def while_others_go_on(self, *brokers: str) -> Iterator[None]:
        """The block in which these brokers must be consumed from; how long each stood still in it is a figure."""
        begin = time.time()
        yield
        self.windows += [(name, begin, time.time()) for name in brokers]

    def lasts(self) -> None:
        """Let the fault last."""
        time.sleep(self.outage_seconds)

    # --- what brokers have

    def below(self, least: Mapping[Place, int]) -> list[str]:
        """The queues whose broker has less than this."""
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
        """Wait until brokers have again what members have committed by now; the seconds that it took."""
        begin, least = time.monotonic(), self.highest()
        try:
            wait_until(lambda: not self.below(least), "brokers have what members have committed", LIFT_SECONDS)
        except AssertionError as error:
            error.add_note("\n".join(self.below(least)))
            raise
        return time.monotonic() - begin
