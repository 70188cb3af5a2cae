"""Text output of commands: tables, and lines with foreign text."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

import typer

from rmqd.process.logs.printable import printable, printable_lines


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
