"""Tables in the width of a terminal."""

from __future__ import annotations

import pytest

from rmqd.cli.terminal.output import table

COLUMNS = ("id", "topic", "queue", "body")
ROWS = [("7F0000012682CA2AE7D092875D320001", "orders", "3", "x" * 60), ("short", "a-topic-with-a-long-name", "12", "")]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_table_fits_and_shows_every_character(width: int) -> None:
    lines = table(COLUMNS, ROWS, width)
    assert max(map(len, lines)) <= width
    shown = "".join(lines).replace(" ", "")
    assert sorted(shown) == sorted(
        "".join((*(column.upper() for column in COLUMNS), *(one for row in ROWS for one in row)))
    )


def test_only_the_widest_columns_are_wrapped() -> None:
    lines = table(COLUMNS, ROWS, 80)
    assert [line.split()[1:3] for line in lines[:2]] == [["TOPIC", "QUEUE"], ["orders", "3"]]
    assert table(COLUMNS, ROWS, 200)[1].split() == [one for one in ROWS[0] if one]
