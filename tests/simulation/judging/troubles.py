"""All that broke in a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tests.simulation.judging.passed import Reset
from tests.simulation.judging.trouble import BEFORE_SECONDS, Trouble
from tests.simulation.ledger import Call

AWAY: Final = frozenset(("crashed", "apart", "frozen"))
"""Troubles for whose time nobody reaches a broker."""


class Troubles:
    """What broke, in the order in which it began."""

    def __init__(self, troubles: Iterable[Trouble] = ()) -> None:
        self._all = list(troubles)

    def __iter__(self) -> Iterator[Trouble]:
        return iter(self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, trouble: Trouble) -> None:
        """Note what breaks. What a broker lost by a crash, or was not told, shows when it is reached again."""
        if trouble.what in AWAY:
            self._all = [
                one._replace(until=max(one.until, trouble.until)) if _goes_on(one, trouble) else one
                for one in self._all
            ]
        self._all.append(trouble)

    def show_at(self, at: float) -> bool:
        """Whether effects of any may show at a time."""
        return any(one.shows_at(at) for one in self._all)

    def explain_unheeded(self, reset: Reset) -> bool:
        """Whether a reset may have had no effect because of one."""
        return any(one.explains_unheeded(reset) for one in self._all)

    def explain_lower(self, broker: str, at: float) -> bool:
        """Whether an offset that a broker has may fall because of one."""
        return any(one.explains_lower(broker, at) for one in self._all)

    def reached_at(self, call: Call, settled: float) -> float:
        """When a broker could be told what was settled by then: it may have been away before the next commit."""
        away = (one for one in self._all if one.what in AWAY and one.is_of((call,)))
        return max((one.until for one in away if one.at <= settled + BEFORE_SECONDS), default=settled)

    def end_of(self, member: str) -> float:
        """When a member was killed, in seconds since the beginning; infinite for others."""
        return min((one.at for one in self._all if one.what == "killed" and member in one.who), default=float("inf"))


def _goes_on(one: Trouble, trouble: Trouble) -> bool:
    """Whether a broker is away again before the effects of a former absence have shown."""
    if one.who != trouble.who or one.what not in AWAY:
        return False
    # what it lost shows at a commit or a take-over; what it was not told, members tell it as soon as they reach it
    return one.shows_at(trouble.at) if one.what == "crashed" else trouble.at <= one.until + BEFORE_SECONDS
