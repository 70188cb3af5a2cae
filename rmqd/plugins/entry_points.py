"""Finds the entry points of installed distributions by the names in a configuration.

This module finds all kinds of plugins. The module of each kind checks the form of the object.
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

IMPORTABLE: Final = "expected a module that can be imported"

_OWN_FOLDER: Final = __file__.rpartition("/")[0]


class EntryPointError(Exception):
    """A name without a usable entry point. The text gives the problem and the expectation."""


@functools.cache
def installed(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points of a group by name. A name has several if distributions disagree about it.

    All distributions are searched once, and the result is kept until `look_again`.
    """
    found: dict[str, list[EntryPoint]] = {}
    for entry_point in sorted(_all_installed().select(group=group)):
        found.setdefault(entry_point.name, []).append(entry_point)
    return found


def look_again() -> None:
    """Make the next call search all distributions again, because a plugin may have been installed before a reload."""
    _all_installed.cache_clear()
    installed.cache_clear()


@functools.cache
def _all_installed() -> Any:
    return importlib.metadata.entry_points()


def not_installed(kind: str, name: str, known: Iterable[str], also: str = "") -> EntryPointError:
    """Return the error for an unknown name, with a similar name and all known names."""
    names = list(known)
    guess = nearest(name, names)
    meant = f"; did you mean {guess}?" if guess else ""
    also = f"or {also}" if also and names else also
    accepted = ", ".join(filter(None, [*names, also])) or "none"
    return EntryPointError(f"no {kind} {name!r} is installed{meant}; expected {accepted}")


def import_object(kind: str, entry_points: list[EntryPoint], otherwise: str) -> object:
    """Import the object of a name's only entry point. Raises EntryPointError.

    If there are several entry points, the error says to write `otherwise` instead.
    """
    entry_point = entry_points[0]
    if len(entry_points) > 1:
        owners = ", ".join(f"{one.dist.name if one.dist else 'unknown'} ({one.value})" for one in entry_points)
        raise EntryPointError(f"several distributions have a {kind} of this name: {owners}; expected {otherwise}")
    try:
        return entry_point.load()
    except (Exception, SystemExit) as error:  # importing runs the plugin's code, which may raise anything
        owner = f" of {entry_point.dist.name}" if entry_point.dist else ""
        text = f"{entry_point.value}{owner} cannot be imported: {why(error)}; {IMPORTABLE}"
        raise EntryPointError(text) from error


def why(error: BaseException) -> str:
    """Return a plugin's error with the line that raised it, without the frames of Python's import system."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    text = describe(error)
    if isinstance(error, SyntaxError) or not frames or frames[-1].filename.startswith(_OWN_FOLDER):
        return text
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})"
