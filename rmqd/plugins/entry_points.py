"""What other distributions bring along for rmqd: entry points, found by the name that a configuration uses.

Every kind of plugin is found here; what an object must look like is the business of its kind.
"""

from __future__ import annotations

import functools
import importlib.metadata
import traceback
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from typing import Any, Final

from rmqd.config.problems import nearest
from rmqd.plain_text import describe

IMPORTABLE: Final = "accepted: a module that can be imported"

_OWN_FOLDER: Final = __file__.rpartition("/")[0]


class EntryPointError(Exception):
    """A name that leads to nothing that can be used; the text says what is wrong, and what is accepted."""


@functools.cache
def installed(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points of a group by name; more than one where distributions disagree about a name.

    Found once for all groups, as it takes a look at every distribution; `look_again` has it done anew.
    """
    found: dict[str, list[EntryPoint]] = {}
    for entry_point in sorted(_all_installed().select(group=group)):
        found.setdefault(entry_point.name, []).append(entry_point)
    return found


def look_again() -> None:
    """Forget what is installed: a reload may come after an installation."""
    _all_installed.cache_clear()
    installed.cache_clear()


@functools.cache
def _all_installed() -> Any:
    return importlib.metadata.entry_points()


def not_installed(kind: str, name: str, known: Iterable[str], also: str = "") -> EntryPointError:
    """The error for a name that nothing has: with the one that was meant, and all that there are."""
    names = list(known)
    guess = nearest(name, names)
    meant = f"; did you mean {guess}?" if guess else ""
    also = f"or {also}" if also and names else also
    accepted = ", ".join(filter(None, [*names, also])) or "none"
    return EntryPointError(f"no {kind} {name!r} is installed{meant}; accepted: {accepted}")


def import_object(kind: str, entry_points: list[EntryPoint], otherwise: str) -> object:
    """The object behind the entry points of one name. Raises EntryPointError; `otherwise` helps where they are many."""
    entry_point = entry_points[0]
    if len(entry_points) > 1:
        owners = ", ".join(f"{one.dist.name if one.dist else 'unknown'} ({one.value})" for one in entry_points)
        raise EntryPointError(f"several distributions have a {kind} of this name: {owners}; accepted: {otherwise}")
    try:
        return entry_point.load()
    except (Exception, SystemExit) as error:  # importing runs the plugin's code
        owner = f" of {entry_point.dist.name}" if entry_point.dist else ""
        text = f"{entry_point.value}{owner} cannot be imported: {why(error)}; {IMPORTABLE}"
        raise EntryPointError(text) from error


def why(error: BaseException) -> str:
    """An error of somebody else's code with the line that raised it, the machinery of imports left out."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    text = describe(error)
    if isinstance(error, SyntaxError) or not frames or frames[-1].filename.startswith(_OWN_FOLDER):
        return text
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})"
