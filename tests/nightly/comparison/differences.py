"""What a run of the script found different, and what of it is accepted."""

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
    """One value that is not the same, by its step and its path in the answer."""

    what: str
    path: str
    real: Any
    embedded: Any

    def __str__(self) -> str:
        return f"{self.what}: {self.path}: real {self.real!r}, embedded {self.embedded!r}"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Differences that stay, and why: by patterns of their steps and paths, where `*` stands for anything.

    With `real`, a regular expression, those alone whose real value it matches; `where` tells that in words.
    """

    what: str
    path: str
    why: str
    where: str = ""
    real: str = ".*"

    def covers(self, difference: Difference) -> bool:
        """Whether the difference is one of these."""
        return (
            fnmatchcase(difference.what, self.what)
            and fnmatchcase(difference.path, self.path)
            and re.fullmatch(self.real, str(difference.real), re.DOTALL) is not None
        )


ACCEPTED: tuple[Accepted, ...] = (
    Accepted(
        "*",
        "remark",
        "a request that cannot be read, or that the real broker stumbles over: the code is the same, the words are "
        "each one's own, as no client reads them",
        where="the real one's begins with the name of a Java exception",
        real=r"[a-z0-9.]+\.\w+Exception: .*",
    ),
    Accepted(
        "not here: *",
        "*",
        "transactions, access control and other brokers' registrations are not "
        "there yet: refused as a code that the real broker does not know",
    ),
    Accepted(
        "send the half of a transaction",
        "*",
        "without transactions, their halves are refused as by a real broker with rejectTransactionMessage",
    ),
    Accepted(
        "offset that was cloned with all",
        "*",
        "request 314 without a topic copies the offsets of all topics, as it is meant to; the real broker copies none",
    ),
    Accepted(
        "all offsets",
        "body.*_clone*",
        "the copies of 314; and 308 leaves alone the offsets of the groups in filterGroups, which the real one deletes",
    ),
)


def compared(
    real: Mapping[str, Any], embedded: Mapping[str, Any], addresses: tuple[Mapping[str, str], Mapping[str, str]]
) -> list[Difference]:
    """Everything that differs between two runs of one script; `addresses` are those of either side by their names."""
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
    """What is not accepted."""
    accepted = list(accepted)
    return [difference for difference in found if not any(one.covers(difference) for one in accepted)]


def gone(found: Iterable[Difference], accepted: Iterable[Accepted] = ACCEPTED) -> list[Accepted]:
    """What is accepted, and no longer there."""
    found = list(found)
    return [one for one in accepted if not any(one.covers(difference) for difference in found)]
