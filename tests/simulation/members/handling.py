"""The handler of a simulation. Its decisions are drawn, and recorded for the judge."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmqd.handler_api.batch import Batch, DeadLetter, ManualCommitBatch, Retry, Suspend
from tests.simulation.habits import Habits
from tests.simulation.ledger import Call, Verdict

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger
    from tests.simulation.plan import Plan

LEVELS: Final = (None, None, 0, 1, 2, -1)
"""The delay levels of handlers' retries: a level of the first seconds, the default, or a dead letter (-1)."""
REST_SECONDS: Final = (None, 0.0, 0.1, 2.0)
"""The suspensions that handlers request for an orderly queue."""
COMMITS: Final = 0.4
"""The share of batches after which a handler with its own commits commits."""
ROLLS_BACK: Final = 0.05
QUICK: Final = Habits(most_seconds=0.02)


class HandlerFailed(Exception):
    """The error of a simulation's handler."""


def is_poison(seed: int, habits: Habits, key: str) -> bool:
    """Whether every handler fails at this message."""
    return zlib.crc32(f"{seed} {key}".encode()) % 1000 < habits.poison * 1000


class Handling:
    """One member's handler."""

    def __init__(self, member: str, ledger: Ledger, plan: Plan, chance: random.Random, timeout_seconds: float) -> None:
        self._member = member
        self._ledger = ledger
        self._plan = plan
        self._chance = chance
        self._timeout_seconds = timeout_seconds
        self.habits = plan.habits
        self._rolls_back = ROLLS_BACK
        self.hangs = 0
        """The number of next calls that hang; in an orderly group, until their timeout is over."""
        self.may_begin = asyncio.Event()
        """Unset while handlers are blocked."""
        self.may_begin.set()
        self._is_orderly = "orderly" in plan.way
        self._is_in_line = self._is_orderly and not plan.has_lanes

    def be_quick(self) -> None:
        """Handle messages quickly and without failures from now on."""
        self.hangs, self._rolls_back, self.habits = 0, 0.0, QUICK

    async def __call__(self, batch: Batch) -> None:
        """Handle a batch, or fail at it."""
        calls = [self._ledger.begin(self._member, message) for message in batch]
        try:
            if self.hangs:
                self.hangs -= 1
                if self._is_orderly:  # orderly calls are not cancelled
                    await asyncio.sleep(self._timeout_seconds + 1.0)
                else:
                    await asyncio.get_running_loop().create_future()
            await self.may_begin.wait()
            await self._work(batch, calls)
        except asyncio.CancelledError:
            for call in calls:
                self._ledger.cut_short(call, self._timeout_seconds)
            raise

    async def _work(self, batch: Batch, calls: list[Call]) -> None:
        habits, chance = self.habits, self._chance
        is_slow = habits.slow and chance.random() < habits.slow
        await asyncio.sleep(chance.uniform(0, habits.slow_seconds if is_slow else habits.most_seconds))
        if isinstance(batch, ManualCommitBatch) and chance.random() < self._rolls_back:
            batch.rollback()
            self._ledger.roll_back(calls)
            return
        try:
            self._decide(batch, calls)
        finally:
            if isinstance(batch, ManualCommitBatch) and chance.random() < COMMITS:
                batch.commit()
                self._ledger.commit(calls[0])

    def _decide(self, batch: Batch, calls: list[Call]) -> None:
        habits, chance = self.habits, self._chance
        poison = [index for index, call in enumerate(calls) if is_poison(self._plan.seed, habits, call.key)]
        if poison:
            ending = chance.choice(_FAILURES) if habits.verdicts else Handling._fail
            ending(self, batch, calls, poison[0])
        elif habits.fails and chance.random() < habits.fails:
            self._fail(batch, calls, 0)
        elif habits.verdicts and chance.random() < habits.verdicts:
            chance.choice(_ENDINGS)(self, batch, calls, chance.randrange(len(calls)))
        else:
            self._end(calls, Verdict.DONE)

    def _fail(self, batch: Batch, calls: list[Call], at: int) -> None:
        self._end(calls, Verdict.FAILED)
        raise HandlerFailed(self._member)

    def _suspend(self, batch: Batch, calls: list[Call], at: int) -> None:
        self._end(calls, Verdict.FAILED)
        raise Suspend(self._chance.choice(REST_SECONDS))

    def _raise_retry(self, batch: Batch, calls: list[Call], at: int) -> None:
        level = self._chance.choice(LEVELS)
        self._end(calls, _of_level(level), level)
        raise Retry(level)

    def _raise_dead_letter(self, batch: Batch, calls: list[Call], at: int) -> None:
        self._end(calls, Verdict.DEAD)
        raise DeadLetter("refused")

    def _stop_at(self, batch: Batch, calls: list[Call], at: int) -> None:
        batch.ack_index = at - 1
        self._end(calls[:at], Verdict.DONE)
        self._end(calls[at:], Verdict.FAILED)

    def _retry_one(self, batch: Batch, calls: list[Call], at: int) -> None:
        level = self._chance.choice(LEVELS)
        batch.retry(batch[at], level)
        self._end(calls[:at], Verdict.DONE)
        self._end(calls[at : at + 1], _of_level(level), level)
        passes = not self._is_in_line or level == -1 or self._ledger.is_last(calls[at])
        self._end(calls[at + 1 :], Verdict.DONE if passes else Verdict.AGAIN)

    def _dead_letter_one(self, batch: Batch, calls: list[Call], at: int) -> None:
        batch.dead_letter(batch[at], "refused")
        self._end(calls[at : at + 1], Verdict.DEAD)
        self._end([call for call in calls if call is not calls[at]], Verdict.DONE)

    def _do_one_and_fail(self, batch: Batch, calls: list[Call], at: int) -> None:
        batch.ack(batch[at])
        self._end(calls[at : at + 1], Verdict.DONE)
        self._end([call for call in calls if call is not calls[at]], Verdict.FAILED)
        raise HandlerFailed(self._member)

    def _end(self, calls: list[Call], verdict: Verdict, level: int | None = None) -> None:
        for call in calls:
            self._ledger.end(call, verdict, level)


def _of_level(level: int | None) -> Verdict:
    return Verdict.DEAD if level == -1 else Verdict.FAILED


Ending = Callable[[Handling, Batch, list[Call], int], None]
_FAILURES: Final[tuple[Ending, ...]] = (Handling._fail, Handling._suspend, Handling._stop_at)
_ENDINGS: Final[tuple[Ending, ...]] = (
    *_FAILURES, Handling._raise_retry, Handling._raise_dead_letter, Handling._retry_one, Handling._dead_letter_one,
    Handling._do_one_and_fail,
)  # fmt: skip
