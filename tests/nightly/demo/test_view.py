"""The frame of the live view, as printed on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from rmqd.demo.demo_orders import DeadLetteredOrder
from rmqd.demo.demo_view import DemoSetup, ScreenSize, render_frame
from tests.nightly.demo.figures import handled, make_figures

SETTING = DemoSetup("order-mailer", "127.0.0.1:9876", "/tmp/rmqd.log")
HINT = "Ctrl-C to end"


def lines(width: int, height: int, *, ascii_only: bool = False, **changed: Any) -> list[str]:
    """Return the lines of a frame, without padding."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    shown = render_frame(SETTING, make_figures(**changed), HINT, ScreenSize(width, height, ascii_only))
    return ["".join(segment.text for segment in line) for line in console.render_lines(shown, pad=False)]


def test_the_frame_is_as_high_as_the_terminal_and_never_wider() -> None:
    """With one more line the terminal would scroll and flicker."""
    wrong = []
    for width in (1, 7, 20, 54, 55, 79, 80, 118, 119, 120, 250):
        for height in (1, 2, 5, 10, 19, 20, 24, 40, 70):
            shown = lines(width, height)
            fits = len(shown) == height and all(cell_len(line) <= width for line in shown)
            if not fits or (width >= 20 and shown[-1].strip() != HINT):
                wrong.append((width, height, shown))
    assert wrong == []


def test_terminals_of_80_columns_or_more_show_all_figures() -> None:
    told = (
        "order-mailer  running",
        "1m23s",
        "127.0.0.1:9876",
        "retries after 2s, 3s, 4s here",
        "42/s",
        "99/s",
        "4,321",
        "4,200",
        "orders 3",
        "1,050",
        "retries 0",
        "order-4321",
        "Ada Lovelace",
        "12.50 EUR",
        "order-0",
        "not JSON: Expecting value",
    )
    shown = {size: "\n".join(lines(*size)) for size in ((80, 24), (120, 40), (118, 30), (119, 24))}
    assert {(size, text) for size, frame in shown.items() for text in told if text not in frame} == set()


def test_columns_are_aligned_for_every_script() -> None:
    bodies = [
        f'{{"customer": "{name}", "amount": "1.00", "currency": "EUR"}}'.encode() for name in ("李雷", "Nguyễn An")
    ]
    shown = [line for line in lines(80, 40, handled=[handled(1, body=body) for body in bodies]) if "EUR" in line]

    assert len({cell_len(line.partition("1.00")[0]) for line in shown}) == 1


def test_control_characters_of_a_message_are_not_printed() -> None:
    evil = "\x1b[2Jgone\r\nand\x07more\x9b31m"
    for field in ("key", "reason", "body"):
        letters = [DeadLetteredOrder(evil if field == "key" else "order-1", evil if field == "reason" else "why")]
        text = "\n".join(lines(80, 40, dead_letters=letters, handled=[handled(1, body=evil.encode())]))

        assert not any(character in text for character in "\x1b\r\x07\x9b"), field
        assert "gone" in text, field


def test_a_terminal_without_block_characters_gets_ascii() -> None:
    def figures_alone(ascii_only: bool) -> str:
        return "\n".join(lines(80, 24, ascii_only=ascii_only))

    assert figures_alone(True).isascii()
    assert not figures_alone(False).isascii()


def test_empty_tables_show_none() -> None:
    empty = "\n".join(
        lines(
            80,
            24,
            queues=[],
            handled=[],
            dead_letters=[],
            sent_rate_history=[],
            handled_rate_history=[],
            state="starting",
        )
    )

    assert empty.count(" none") == 3


def test_the_title_shows_the_problem_of_a_failed_group() -> None:
    text = "\n".join(lines(80, 24, state="failed", problem="OSError: no room\x1b[1m\nleft"))

    assert "order-mailer  failed" in text
    assert "OSError: no room [1m left" in text


def test_the_title_says_where_the_group_runs() -> None:
    shown = render_frame(replace(SETTING, is_on_spark=True), make_figures(), HINT, ScreenSize(80, 24))
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=False)

    title = "".join(segment.text for segment in console.render_lines(shown, pad=False)[0])

    assert title.startswith(" rmqd demo  order-mailer on Spark  running ")
