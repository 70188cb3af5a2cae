"""Recorded cases of allocation with the results of Java's own classes.

`tests/nightly/consumer/generated_cases.py` records them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rmqd.consumer.allocate import (
    ALLOCATE_STRATEGIES,
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateError,
    AllocateMessageQueueStrategy,
)
from rmqd.wire.message_queue import MessageQueue

Answer = list[MessageQueue] | None
"""A share; None where a strategy cannot tell."""
RECORDED = Path(__file__).with_name("allocations.txt")
"""Cases with Java's answers, one a line."""
RECORDED_SHARES, RECORDED_OTHERS = 25, 6
STRATEGIES = (*ALLOCATE_STRATEGIES, "by_config", "by_machine_room")


@dataclass(frozen=True, slots=True)
class Case:
    """One allocation request. Queues and clients are sorted and unique, as in a rebalance."""

    strategy: str
    client: str
    queues: tuple[MessageQueue, ...]
    clients: tuple[str, ...]
    allocated: tuple[MessageQueue, ...] = ()
    rooms: tuple[str, ...] = ()

    def ask(self) -> Answer:
        """The share that rmqd's strategy allocates; None if it raises AllocateError."""
        try:
            return list(self._strategy()("group", self.client, self.queues, self.clients))
        except AllocateError:
            return None

    def _strategy(self) -> AllocateMessageQueueStrategy:
        if self.strategy == "by_config":
            return AllocateByConfig(self.allocated)
        if self.strategy == "by_machine_room":
            return AllocateByMachineRoom(frozenset(self.rooms))
        return ALLOCATE_STRATEGIES[self.strategy]


def recorded() -> list[tuple[Case, Answer]]:
    """The cases of the file, each with Java's result."""
    return [_read(line) for line in RECORDED.read_text().splitlines()]


def _read(line: str) -> tuple[Case, Answer]:
    strategy, client, topic, counts, clients, allocated, rooms, own = json.loads(line)
    queues = tuple(MessageQueue(topic, broker, number) for broker, count in counts.items() for number in range(count))
    named = tuple(queues[at] for at in allocated)
    case = Case(strategy, client, queues, tuple(clients), named, tuple(rooms))
    return case, [queues[at] for at in own] if own is not None else None
