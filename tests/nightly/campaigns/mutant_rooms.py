"""The mutated modules, which keep rmqd's promises, by room, and the nearest tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.nightly.campaigns.mutations import ROOT, Mutant, mutants_of


@dataclass(frozen=True, slots=True)
class Room:
    """Modules below rmqd/consumer, and the folders and modules below tests/consumer that judge them first."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> list[str]:
        """Return the paths of the modules, relative to the repository."""
        consumer = ROOT / "rmqd/consumer"
        found = [path for module in self.modules for path in sorted(consumer.glob(f"{module}.py"))]
        return [str(path.relative_to(ROOT)) for path in found]

    def mutants(self) -> list[Mutant]:
        """Return all mutants of the modules."""
        return [mutant for path in self.paths() for mutant in mutants_of(path)]

    def is_nearest(self, test: str) -> bool:
        """Return whether a test id belongs to one of the room's folders or modules."""
        return any(test.startswith((f"tests/consumer/{name}/", f"tests/consumer/{name}.py:")) for name in self.tests)


def _named(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


ROOMS = {
    room.name: room
    for room in (
        Room(
            "process_queue",
            ("cache/process_queue", "cache/keyed_process_queue", "pop/receipts"),
            ("cache", "pop"),
        ),
        Room("slots", _named("handling", "slots ready_queues batch_worker watched_tasks orderly"), ("handling",)),
        Room(
            "settlement",
            _named("handling", "settlement send_back handler_failures in_place_retries"),
            ("handling",),
        ),
        Room("receipts", _named("pop", "receipts pop_retries"), ("pop",)),
        Room(
            "hand_over",
            (
                "pull/assigned_queue",
                "pull/queue_release",
                "assigned/assignment",
                *_named("rebalance", "ownership membership queue_lock"),
            ),
            ("rebalance", "assigned", "pull/test_giving_up", "pull/test_assigned_queue", "pull/test_moved_offset"),
        ),
        Room("offsets", ("offsets/*",), ("offsets",)),
    )
}


def tests_of_all() -> tuple[Path, ...]:
    """Return the folders of daily tests that judge every room: tests of the consumer, and of groups inside a test."""
    return ROOT / "tests/consumer", ROOT / "tests/testing"
