"""The differences that a run of the script found, and the accepted differences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.nightly.comparison.rules import flattened, generalised

MISSING = "(nothing)"


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs, with its step and its path in the response."""

    what: str
    path: str
    real: Any
    embedded: Any

    def __str__(self) -> str:
        return f"{self.what}: {self.path}: real {self.real!r}, embedded {self.embedded!r}"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Accepted differences, with the reason. `what` and `path` are patterns of steps and paths with the wildcard `*`.

    The regular expression `real` must match the real value. `where` describes this condition in words.
    """

    what: str
    path: str
    why: str
    where: str = ""
    real: str = ".*"

    def covers(self, difference: Difference) -> bool:
        """Return whether the difference is one of these."""
        return (
            fnmatchcase(difference.what, self.what)
            and fnmatchcase(difference.path, self.path)
            and re.fullmatch(self.real, str(difference.real), re.DOTALL) is not None
        )


ACCEPTED: tuple[Accepted, ...] = (
    Accepted(
        "*",
        "remark",
        "a request that is unreadable, or that raises an exception in the real broker: the code is the same; the text "
        "differs, because no client reads it",
        where="the real broker's remark begins with the name of a Java exception",
        real=r"[a-z0-9.]+\.\w+Exception: .*",
    ),
    Accepted(
        "not here: *",
        "*",
        "transactions, access control and registrations of other brokers are missing: rejected like a code that the "
        "real broker does not know",
    ),
    Accepted(
        "send the half of a transaction",
        "*",
        "without transactions, their halves are rejected as by a real broker with rejectTransactionMessage",
    ),
    Accepted(
        "offset that was cloned with all",
        "*",
        "request 314 without a topic copies the offsets of all topics, as intended; the real broker copies none",
    ),
)


def compared(
    real: Mapping[str, Any], embedded: Mapping[str, Any], addresses: tuple[Mapping[str, str], Mapping[str, str]]
) -> list[Difference]:
    """Return all differences between two runs of one script. `addresses` are each side's addresses, by name."""
    found = []
    for what in [*real, *(what for what in embedded if what not in real)]:
        ours = flattened(generalised(embedded.get(what), addresses[1]))
        theirs = flattened(generalised(real.get(what), addresses[0]))
        found += [
            Difference(what, path, theirs.get(path, MISSING), ours.get(path, MISSING))
            for path in [*theirs, *(path for path in ours if path not in theirs)]
            if theirs.get(path, MISSING) != ours.get(path, MISSING)
        ]
    return found


def open_ones(found: Iterable[Difference], accepted: Iterable[Accepted] = ACCEPTED) -> list[Difference]:
    """Return the differences that are not accepted."""
    accepted = list(accepted)
    return [difference for difference in found if not any(one.covers(difference) for one in accepted)]


def gone(found: Iterable[Difference], accepted: Iterable[Accepted] = ACCEPTED) -> list[Accepted]:
    """Return the accepted differences that no longer exist."""
    found = list(found)
    return [one for one in accepted if not any(one.covers(difference) for difference in found)]
