"""All troubles of a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tests.simulation.judging.passed import Reset
from tests.simulation.judging.trouble import BEFORE_SECONDS, Trouble
from tests.simulation.ledger import Call

AWAY: Final = frozenset(("crashed", "apart", "frozen"))
"""Troubles during which a broker is unreachable."""


class Troubles:
    """Troubles in the order of their beginning."""

    def __init__(self, troubles: Iterable[Trouble] = ()) -> None:
        self._all = list(troubles)

    def __iter__(self) -> Iterator[Trouble]:
        return iter(self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, trouble: Trouble) -> None:
        """Add a trouble. The effects of an earlier outage may last until the broker is reachable again."""
        if trouble.what in AWAY:
            self._all = [
                one._replace(until=max(one.until, trouble.until)) if _goes_on(one, trouble) else one
                for one in self._all
            ]
        self._all.append(trouble)

    def show_at(self, at: float) -> bool:
        """Whether any trouble's effects may show at a time."""
        return any(one.shows_at(at) for one in self._all)

    def explain_unheeded(self, reset: Reset) -> bool:
        """Whether any trouble explains that a reset had no effect."""
        return any(one.explains_unheeded(reset) for one in self._all)

    def explain_lower(self, broker: str, at: float) -> bool:
        """Whether any trouble explains that a stored offset falls."""
        return any(one.explains_lower(broker, at) for one in self._all)

    def reached_at(self, call: Call, settled: float) -> float:
        """Return when a broker could receive the commit of a settled message: it may have been unreachable before."""
        away = (one for one in self._all if one.what in AWAY and one.is_of((call,)))
        return max((one.until for one in away if one.at <= settled + BEFORE_SECONDS), default=settled)

    def end_of(self, member: str) -> float:
        """Return when a member was killed, in seconds since the beginning; infinite for others."""
        return min((one.at for one in self._all if one.what == "killed" and member in one.who), default=float("inf"))


def _goes_on(one: Trouble, trouble: Trouble) -> bool:
    """Whether a broker is unreachable again before the effects of its former outage have shown."""
    if one.who != trouble.who or one.what not in AWAY:
        return False
    # Lost offsets show at a commit or an acquisition; late commits arrive as soon as the broker is reachable.
    return one.shows_at(trouble.at) if one.what == "crashed" else trouble.at <= one.until + BEFORE_SECONDS
