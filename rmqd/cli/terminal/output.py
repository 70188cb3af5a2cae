"""Output of commands: tables, messages, times, and the progress of a long command.

Times and durations in options.

The progress of a long command.

Text output of commands: tables, and lines with foreign text.

Messages of a cluster as text, and as JSON.
"""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import typer

from rmqd.runtime.plain_text import printable, printable_lines

if TYPE_CHECKING:
    from rmqd.operate.queries.message_queries import FoundMessage


def moment_ms(text: str, option: str) -> int:
    """Return Unix milliseconds of a time (ISO 8601 with a zone, or @milliseconds), or of an age (10m).

    Raises typer.BadParameter, which names the option.
    """
    import time

    from rmqd.config.model.forms import PointInTime
    from rmqd.config.model.value_kinds import parse_duration_ms

    try:
        return round(time.time() * 1000 - parse_duration_ms(text))
    except ValueError:
        pass
    try:
        return PointInTime().check(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or an age such as 10m", param_hint=option) from None


def seconds(text: str, option: str) -> float:
    """Return the seconds of a duration such as 30s. Raises typer.BadParameter, which names the option."""
    from rmqd.config.model.value_kinds import parse_duration_ms

    try:
        return parse_duration_ms(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


class CommandProgress:
    """Shows the progress of a command on standard error: in place on a terminal, else regularly on a separate line.

    As a context manager it clears its line at the end, so that the next output starts on an empty line.
    """

    def __init__(self, total: int, verb: str) -> None:
        import time

        self.done = 0
        self._total = total
        self._verb = verb
        self._now = time.monotonic
        self._shows_at = self._now() + _quiet_seconds()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            typer.echo("\r\033[K", nl=False, err=True)

    def report(self, done: int) -> None:
        """Report the number done so far."""
        self.done = done
        if self._now() < self._shows_at:
            return
        self._shows_at = self._now() + _quiet_seconds()
        text = f"{done} of {self._total} {self._verb}"
        if sys.stderr.isatty():
            typer.echo(f"\r{text}\033[K", nl=False, err=True)
        else:
            say([text], err=True)


def _quiet_seconds() -> float:
    return 0.2 if sys.stderr.isatty() else 5.0


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: capitalised column names, then the rows, with columns as wide as needed."""
    every = [[column.upper() for column in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in every) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]


def say_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. On a terminal, lines are cut to its width."""
    lines = table(columns, rows)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        lines = [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]
    typer.echo("\n".join(lines))


def count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 queue`, `2 queues`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def was(number: int) -> str:
    """Return the verb after a count: `was`, `were`."""
    return "was" if number == 1 else "were"


def say_json(document: object) -> None:
    """Print a document as indented JSON, in ASCII, so that foreign text cannot control the terminal."""
    import json

    typer.echo(json.dumps(document, indent=2, default=str))


def say(lines: Iterable[str], err: bool = False) -> None:
    """Print lines. Text from brokers or producers cannot control the terminal or start a new line."""
    for line in lines:
        typer.echo(printable_lines(line), err=err)


def as_document(message: FoundMessage) -> dict[str, Any]:
    """Return all fields. A UTF-8 body is text, another one `body_base64`."""
    document = asdict(message)
    body = document.pop("body")
    try:
        return document | {"body": body.decode()}
    except UnicodeDecodeError:
        return document | {"body_base64": base64.b64encode(body).decode()}


def as_lines(message: FoundMessage) -> list[str]:
    """Return a line for each field, and the body below them."""
    fields = {
        "id": message.msg_id,
        "offset id": message.offset_msg_id,
        "place": f"{message.topic}, {message.broker}, queue {message.queue}, offset {message.offset}",
        "keys": message.keys,
        "tags": message.tags,
        "born": f"{written_time(message.born_at_ms)} at {message.born_host}",
        "stored": f"{written_time(message.stored_at_ms)} at {message.store_host}",
        "reconsumed": count(message.reconsume_times, "time"),
        "properties": ", ".join(f"{name}={value}" for name, value in sorted(message.properties.items())),
    }
    return [*(f"{name + ':':<12} {value}" for name, value in fields.items() if value), "", body_text(message.body)]


def body_text(body: bytes) -> str:
    """Return the body if it is UTF-8, else its length."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"({count(len(body), 'byte')} that are not UTF-8)"


def written_time(at_ms: int) -> str:
    """Return a time in UTC with milliseconds; - for none."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "milliseconds") if at_ms > 0 else "-"
