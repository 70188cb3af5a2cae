"""A broadcasting group: each machine must handle every message."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.lost import lost
from tests.simulation.judging.order import disorder
from tests.simulation.judging.retries import too_many
from tests.simulation.judging.troubles import Troubles
from tests.simulation.judging.twice import twice
from tests.simulation.judging.wrong import Wrong

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.judging.trouble import Trouble
    from tests.simulation.members.home import Home

CAUSES: Final = frozenset(("killed", "rushed"))
"""The only causes of duplicates: the offsets are in a local file, so no network and no broker affects them."""


def judge_homes(history: History) -> tuple[list[Wrong], Counter[str]]:
    """Return the faults of all machines, and the number of duplicates by cause."""
    wrong, causes = list[Wrong](), Counter[str]()
    for home in history.homes:
        seen = _seen_from(history, home)
        repeated, found = twice(seen)
        causes.update(found)
        for one in (*_unopened(home), *lost(seen), *repeated, *too_many(seen), *_out_of_order(seen)):
            wrong.append(one._replace(text=f"on {home.name}: {one.text}"))
    return wrong, causes


def _seen_from(history: History, home: Home) -> History:
    """Return the history as if this machine was the whole group."""
    seen = copy.copy(history)
    names = {member.name for member in home.members}
    own = [cause for cause in history.causes if not names.isdisjoint(cause.who)]
    seen.ledger, seen.passed, seen.former = home.ledger, home.passed, home.members
    seen.causes = Troubles(_as_here(cause, own) for cause in own if cause.what in CAUSES)
    return seen


def _as_here(end: Trouble, own: list[Trouble]) -> Trouble:
    """Return the end of a member, from its last chance to store offsets until the next member starts."""
    pauses = [one.at for one in own if one.what == "paused" and one.who == end.who and one.at <= end.at <= one.until]
    return end._replace(at=min([end.at, *pauses]), until=float("inf"))


def _out_of_order(seen: History) -> Iterator[Wrong]:
    if seen.is_orderly:
        yield from disorder(seen)


def _unopened(home: Home) -> Iterator[Wrong]:
    if home.is_free and home.members[-1].host.is_dead:
        yield Wrong("away", "no member came back", frozenset())
