"""A steady load on all current queues of a topic on several brokers. The queues grow during the load."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tests.integration.background import Background
from tests.rocketmq.ledger import SENT, Entry
from tests.rocketmq.producer import Producer

Place = tuple[str, int]
"""A broker's address and a queue there."""


class GrowingLoad(Background):
    """Sends the keys m`first`, m`first + step` and so on once each until `stop`. Any error ends the run."""

    def __init__(
        self, topic: str, places: Iterable[Place], *, per_second: float, first: int, step: int, path: Path
    ) -> None:
        super().__init__(f"load {topic}")
        self.places = list(places)
        """The target queues, used in turn. Replace the list as a whole."""
        self._number = first
        self._step = step
        self._topic = topic
        self._per_second = per_second
        self._path = path

    def work(self) -> None:
        """Send each message at its time."""
        begin, first = time.monotonic(), self._number
        producers: dict[str, Producer] = {}
        try:
            with self._path.open("a", buffering=1) as file:
                while not self.stop.is_set():
                    due = begin + (self._number - first) / self._step / self._per_second
                    if self.stop.wait(max(0.0, due - time.monotonic())):
                        break
                    address, queue = self.places[self._number % len(self.places)]
                    if address not in producers:
                        producers[address] = Producer(address, self._topic)
                    key = f"m{self._number}"
                    _, offset = producers[address].send(key=key, queue=queue)
                    file.write(Entry(SENT, key, address, queue, offset, "producer", time.time_ns() // 1000, 0).line())
                    self._number += self._step
        finally:
            for producer in producers.values():
                producer.close()
