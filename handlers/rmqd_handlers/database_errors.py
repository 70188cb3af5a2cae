"""Errors of databases, as their drivers have them: their codes, and what may be told of them: no value of a body."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

# an apostrophe behind a letter is that of a word, such as doesn't; a quote that is not closed ends with the text
_QUOTED: Final = re.compile(r"""("|(?<![a-zA-Z])')(.*?)(?:\1|\Z)""", re.DOTALL)
_NULL: Final = re.compile(r"(?:NOT NULL constraint failed: |(?:Column|Field) ')([^']+)")


def told(error: Any, names: Iterable[str], values: Iterable[object]) -> str:
    """The error of a statement in words that have no value of a body.

    What a database quotes may be such a value, so that its text ends before a quote, unless that has one of these
    names. What it does not quote, as in the text of a trigger, is left out where it is one of these values. DETAIL and
    CONTEXT, in which PostgreSQL shows rows, are never told.
    """
    text = _first_line(_until_unknown_quote(words_of(error), frozenset(names)))
    known = {str(value) for value in values if value is not None} - {""}
    for value in sorted(known, key=len, reverse=True):  # one may begin another one
        if value in text:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
    parts = [f"{_title(error)}: {text}"]
    if name := getattr(getattr(error, "diag", None), "constraint_name", None):
        parts.append(f"constraint {name}")
    if name := getattr(getattr(error, "diag", None), "column_name", None) or null_column(error):
        parts.append(f"column {name}")
    return ", ".join(parts)


def told_of_connecting(error: Any) -> str:
    """The error of a connection that could not be had: before anything of a body is sent."""
    return f"{_title(error)}: {_first_line(words_of(error))}"


def state_of(error: Any) -> str | None:
    """SQLSTATE, as psycopg, psycopg2 and pyodbc have it."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and isinstance(first := next(iter(error.args), None), str):
        state = first if re.fullmatch(r"[0-9A-Z]{5}", first) else None
    return state if isinstance(state, str) else None


def number_of(error: Any) -> int | None:
    """MySQL's number of an error, as its drivers have it."""
    first = next(iter(error.args), None)
    return first if isinstance(first, int) and len(error.args) > 1 else None


def sqlite_name_of(error: Any) -> str | None:
    """SQLite's name of an error: SQLITE_BUSY."""
    name = getattr(error, "sqlite_errorname", None)
    return name if isinstance(name, str) else None


def null_column(error: Any) -> str | None:
    """The column that must have a value, if that is the error."""
    if state_of(error) == "23502":
        name = getattr(getattr(error, "diag", None), "column_name", None)
        return name if isinstance(name, str) else None
    if number_of(error) in (1048, 1364) or sqlite_name_of(error) == "SQLITE_CONSTRAINT_NOTNULL":
        found = _NULL.search(words_of(error))
        return found[1].rpartition(".")[2] if found else None
    return None


def _title(error: Any) -> str:
    code = number_of(error) or state_of(error) or sqlite_name_of(error)
    return f"{type(error).__name__}{f' {code}' if code else ''}"


def words_of(error: Any) -> str:
    """What the database says, which may have values of a body."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)  # without PostgreSQL's DETAIL
    if primary is None:
        primary = next((part for part in reversed(error.args) if isinstance(part, str)), "")
    return str(primary).strip()


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _until_unknown_quote(text: str, names: frozenset[str]) -> str:
    for quoted in _QUOTED.finditer(text):
        if quoted[2].rpartition(".")[2] not in names:
            return f"{text[: quoted.start()]}…"
    return text
