"""A machine of a broadcasting group: its members, one after the other, and their offset file."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pytest

from rmqd.consumer.offsets import local_file_store
from rmqd.runtime import files as process_lock
from tests.simulation.members.member import Member

if TYPE_CHECKING:
    from tests.simulation.judging.passed import Passed
    from tests.simulation.ledger import Ledger

T = TypeVar("T")
MAX_DISK_SECONDS: Final = 0.05


class Home:
    """One machine. Each machine must handle each message, so each has its own ledger."""

    def __init__(self, name: str, directory: Path, ledger: Ledger, passed: Passed) -> None:
        self.name = name
        self.directory = directory
        self.ledger = ledger
        self.passed = passed
        self.members: list[Member] = []
        """All members of this machine, in their order."""

    @property
    def is_free(self) -> bool:
        """Whether no process runs on this machine."""
        return not self.members or self.members[-1].host.is_dead or self.members[-1].task.done()


def use_disks_of_homes() -> None:
    """Let members write their files in the loop, after a disk delay, instead of in threads.

    All members run in one process, so none of them locks its directory.
    """
    patch = pytest.MonkeyPatch()
    patch.setattr(local_file_store, "call_in_thread", _after_a_moment)
    patch.setattr(process_lock, "lock_file", lambda path: None)


async def _after_a_moment(function: Callable[[], T]) -> T:
    await asyncio.sleep(random.uniform(0.0, MAX_DISK_SECONDS))
    return function()
