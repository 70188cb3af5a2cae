"""How commands print tables for people."""

from __future__ import annotations

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: the columns' names in capitals, then the rows, each column as wide as it needs."""
    every = [[column.upper() for column in columns], *rows]
    widths = [max(len(row[index]) for row in every) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]
