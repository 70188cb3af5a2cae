"""Load: numbered messages, sent at a fixed rate by a thread of the test, even while the broker fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.background import Background
from tests.rocketmq import ClusterError, RealCluster, rpc
from tests.rocketmq.ledger import SENT, Entry
from tests.rocketmq.producer import Producer

RETRY_SECONDS = 0.2


class Load(Background):
    """Sends messages with the keys m`first` up to m`messages` - 1, in turn to the queues of a topic.

    A key counts as sent once the broker confirmed that it is stored. A failed send is repeated, so the topic may hold
    a key twice if a response was lost. With `path`, each sent key is also written to this file.
    """

    def __init__(
        self,
        cluster: RealCluster,
        topic: str,
        messages: int,
        *,
        per_second: float,
        queues: int = 8,
        first: int = 0,
        path: Path | None = None,
        broker: Callable[[], str] | None = None,
        accepted: tuple[int, ...] = rpc.STORED,
    ) -> None:
        """`broker` returns the broker's address for each connection; by default, that of the cluster's first master.

        `accepted` are the response codes that count as stored.
        """
        super().__init__(f"load {topic}")
        self.sent: dict[str, tuple[int, int]] = {}
        """Each key with the queue and the offset that it got."""
        self.repeated = 0
        self._broker = broker or (lambda: cluster.broker.address)
        self._credentials, self._accepted = cluster.credentials, accepted
        self._topic = topic
        self._queues = queues
        self._numbers = range(first, messages)
        self._ledger = path.open("a", buffering=1) if path else None
        self._per_second = per_second
        self._producer: Producer | None = None

    @property
    def done(self) -> bool:
        """Whether every message is stored."""
        return not self.thread.is_alive()

    def wait(self, timeout_seconds: float) -> None:
        """Wait until every message is stored."""
        self.thread.join(timeout_seconds)
        assert self.done, (
            f"only {len(self.sent)} of {len(self._numbers)} messages could be sent in {timeout_seconds:g} s"
        )

    def work(self) -> None:
        """Send each message when it is due."""
        begin = time.monotonic()
        for number in self._numbers:
            due = begin + (number - self._numbers.start) / self._per_second
            if self.stop.wait(max(0.0, due - time.monotonic())):
                break
            self._send(number, f"m{number}")
        if self._producer is not None:
            self._producer.close()
        if self._ledger is not None:
            self._ledger.close()

    def _send(self, number: int, key: str) -> None:
        while not self.stop.is_set():
            try:
                if self._producer is None:
                    self._producer = Producer(
                        self._broker(),
                        self._topic,
                        self._queues,
                        credentials=self._credentials,
                        accepted=self._accepted,
                    )
                queue, offset = self._producer.send(key=key, queue=number % self._queues)
            except (OSError, ClusterError):
                self.repeated += 1
                if self._producer is not None:
                    self._producer.close()
                self._producer = None
                self.stop.wait(RETRY_SECONDS)
            else:
                self.sent[key] = (queue, offset)
                if self._ledger is not None:
                    at_micros = time.time_ns() // 1000
                    self._ledger.write(Entry(SENT, key, "", queue, offset, "producer", at_micros, 0).line())
                return
