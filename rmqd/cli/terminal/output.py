"""The output of commands: JSON, tables, RocketMQ messages, times, and the progress of a long command."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import typer

from rmqd.runtime.plain_text import format_age, printable, printable_lines

if TYPE_CHECKING:
    from rmqd.operate.queries.message_queries import FoundMessage


class CommandProgress:
    """Shows the progress of a command on standard error: on a terminal in one line, otherwise as a line every 5 s.

    On a terminal, the end of its `with` block clears the line, so that the next output starts on an empty line.
    """

    def __init__(self, total: int, verb: str) -> None:
        self.done = 0
        self._total = total
        self._verb = verb
        self._shows_at = time.monotonic() + _quiet_seconds()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            typer.echo("\r\033[K", nl=False, err=True)

    def report(self, done: int) -> None:
        self.done = done
        if time.monotonic() < self._shows_at:
            return
        self._shows_at = time.monotonic() + _quiet_seconds()
        text = f"{done} of {self._total} {self._verb}"
        if sys.stderr.isatty():
            typer.echo(f"\r{text}\033[K", nl=False, err=True)
        else:
            say([text], err=True)


def _quiet_seconds() -> float:
    return 0.2 if sys.stderr.isatty() else 5.0


MIN_COLUMN: Final = 8


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return the lines of a table: column names in capitals, then the rows.

    If the table is wider than `width` characters (None: the terminal's width), its widest columns are wrapped.
    """
    every = [[column.upper() for column in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in every) for index in range(len(columns))]
    room = (_terminal_width() if width is None else width) - 2 * (len(columns) - 1)
    while sum(widths) > room and max(widths) > MIN_COLUMN:
        widths[widths.index(max(widths))] -= 1
    return [line for row in every for line in _row_lines(row, widths)]


def _row_lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    parts = [
        [cell[at : at + width] for at in range(0, len(cell), width)] for cell, width in zip(row, widths, strict=True)
    ]
    lines = zip_longest(*parts, fillvalue="") if any(parts) else [[""] * len(row)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _terminal_width() -> int:
    """Return the width for tables: the terminal's, less two for indented tables; unlimited without a terminal."""
    return shutil.get_terminal_size().columns - 2 if sys.stdout.isatty() else sys.maxsize


Answer = TypeVar("Answer")
Columns = Sequence[str | tuple[str, str | Callable[[dict[str, Any]], str]]]
"""The columns of a table: a document's key, a title with a key, or a title with a function that returns the cell."""


def document_table(columns: Columns, documents: Iterable[dict[str, Any]]) -> list[str]:
    """Return the lines of a table with a row for each document. A key's unit (_ms, _seconds) sets the cell format."""
    named = dict((one, one) if isinstance(one, str) else one for one in columns)
    rows = [
        [_cell(value, one.get(value)) if isinstance(value, str) else value(one) for value in named.values()]
        for one in documents
    ]
    return table([*named], rows)


def _cell(key: str, value: Any) -> str:
    if key.endswith("_ms"):
        return written_time(value)
    if key.endswith("_seconds"):
        return format_age(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return ",".join(value) if isinstance(value, tuple) else "-" if value in (None, "") else str(value)


def say_table(columns: Columns, documents: Iterable[dict[str, Any]]) -> None:
    typer.echo("\n".join(document_table(columns, documents)))


def count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 queue`, `2 queues`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def was(number: int) -> str:
    return "was" if number == 1 else "were"


_COMMAND: Final = re.compile(r"`rmqd (\w+)[^`]*(?=`)")
_DAEMON_COMMANDS: Final = {"canary", "concurrency", "pause", "reload", "restart", "resume", "status"}
_WITHOUT_CLUSTER_OPTIONS: Final = {"check", "run"}


def add_command_options(
    step: str,
    config: Path | None,
    http: str | None = None,
    of_cluster: Mapping[str, str | None] | None = None,
    *,
    other_daemon: bool = False,
) -> str:
    """Return `step`, with this command's options added to the `rmqd` commands in it, so that users can copy them.

    With `other_daemon`, the step is for a member of another daemon, and users must insert that daemon's address.
    """

    def add(command: re.Match[str]) -> str:
        given: dict[str, Any] = {"-c": config}
        if command[1] in _DAEMON_COMMANDS:
            given = {"--http": "HOST:PORT"} if other_daemon else given | {"--http": http}
        elif command[1] not in _WITHOUT_CLUSTER_OPTIONS:
            given |= of_cluster or {}
        return command[0] + "".join(
            f" {option} {shlex.quote(str(value))}" for option, value in given.items() if value is not None
        )

    more = "; HOST:PORT is the HTTP address of the named member's daemon"
    changed = _COMMAND.sub(add, step)
    return changed + more if "--http HOST:PORT" in changed else changed


def say_json(document: object) -> None:
    """Print a document as indented JSON. Only ASCII is printed, so text from brokers cannot control the terminal."""
    typer.echo(json.dumps(document, indent=2, default=str))


def to_document(found: Any) -> Any:
    """Convert a dataclass to a dictionary for JSON, or a list of dataclasses to a list of dictionaries."""
    return [asdict(one) for one in found] if isinstance(found, list) else asdict(found)


def say(lines: Iterable[str], err: bool = False) -> None:
    """Print lines. Control characters are escaped, and line breaks in a line are followed by an indentation."""
    for line in lines:
        typer.echo(printable_lines(line), err=err)


def message_document(message: FoundMessage) -> dict[str, Any]:
    """Convert a message to a dictionary for JSON. `body` is text; if it is not UTF-8, `body_base64` replaces it."""
    document = asdict(message)
    body = document.pop("body")
    try:
        return document | {"body": body.decode()}
    except UnicodeDecodeError:
        return document | {"body_base64": base64.b64encode(body).decode()}


def message_body(message: dict[str, Any]) -> bytes:
    """Return the bytes of the body in the result of `message_document`."""
    return message["body"].encode() if "body" in message else base64.b64decode(message["body_base64"])


def message_lines(message: dict[str, Any]) -> list[str]:
    """Return a message as text: a line for each field of its document that has a value, then the body."""
    fields = {
        "id": message["msg_id"],
        "offset id": message["offset_msg_id"],
        "place": f"{message['topic']}, {message['broker']}, queue {message['queue']}, offset {message['offset']}",
        "keys": message["keys"],
        "tags": message["tags"],
        "born": f"{written_time(message['born_at_ms'])} at {message['born_host']}",
        "stored": f"{written_time(message['stored_at_ms'])} at {message['store_host']}",
        "reconsumed": count(message["reconsume_times"], "time"),
        "properties": ", ".join(f"{name}={value}" for name, value in sorted(message["properties"].items())),
    }
    return [*(f"{name + ':':<12} {value}" for name, value in fields.items() if value), "", body_text(message)]


def body_text(message: dict[str, Any]) -> str:
    """Return the body in a message's document as text; if it is not UTF-8, a note with its length in bytes."""
    return message["body"] if "body" in message else f"({count(len(message_body(message)), 'byte')} that are not UTF-8)"


def body_cell(message: dict[str, Any]) -> str:
    """Return the first 60 characters of a message's body, for a table."""
    return body_text(message)[:60]


def written_time(at_ms: int) -> str:
    """Return a time (Unix milliseconds) as a text in UTC; `-` for 0 or less."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "milliseconds") if at_ms > 0 else "-"
