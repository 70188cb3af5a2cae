"""Errors of database drivers: their codes, and their texts without values of a body."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

# an apostrophe after a letter belongs to a word, such as doesn't; an unclosed quote extends to the end
_QUOTED: Final = re.compile(r"""("|(?<![a-zA-Z])')(.*?)(?:\1|\Z)""", re.DOTALL)
_NULL: Final = re.compile(r"(?:NOT NULL constraint failed: |(?:Column|Field) ')([^']+)")


def told(error: Any, names: Iterable[str], values: Iterable[object]) -> str:
    """Return the error of a statement without values of a body.

    A quoted part may be such a value, so the text is cut at a quote, unless it quotes one of these names. Unquoted
    values, such as in the text of a trigger, are removed if they are one of these values. DETAIL and CONTEXT, where
    PostgreSQL shows rows, are never included.
    """
    text = _first_line(_until_unknown_quote(words_of(error), frozenset(names)))
    known = {str(value) for value in values if value is not None} - {""}
    for value in sorted(known, key=len, reverse=True):  # one value may be the start of another
        if value in text:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
    parts = [f"{_title(error)}: {text}"]
    if name := getattr(getattr(error, "diag", None), "constraint_name", None):
        parts.append(f"constraint {name}")
    if name := getattr(getattr(error, "diag", None), "column_name", None) or null_column(error):
        parts.append(f"column {name}")
    return ", ".join(parts)


def told_of_connecting(error: Any) -> str:
    """Return the error of a failed connection, which cannot contain values of a body."""
    return f"{_title(error)}: {_first_line(words_of(error))}"


def state_of(error: Any) -> str | None:
    """Return the SQLSTATE, as psycopg, psycopg2 and pyodbc provide it."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and isinstance(first := next(iter(error.args), None), str):
        state = first if re.fullmatch(r"[0-9A-Z]{5}", first) else None
    return state if isinstance(state, str) else None


def number_of(error: Any) -> int | None:
    """Return MySQL's error number, as its drivers provide it."""
    first = next(iter(error.args), None)
    return first if isinstance(first, int) and len(error.args) > 1 else None


def sqlite_name_of(error: Any) -> str | None:
    """Return SQLite's error name, such as SQLITE_BUSY."""
    name = getattr(error, "sqlite_errorname", None)
    return name if isinstance(name, str) else None


def null_column(error: Any) -> str | None:
    """Return the column that must not be NULL, if that is the error."""
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
    """Return the database's message, which may contain values of a body."""
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
