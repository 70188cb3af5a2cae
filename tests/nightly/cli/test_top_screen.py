"""`rmqd top`: the effects of keys, and the frames, with a recorded status document."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rmqd.cli.daemon_commands import top_lines
from rmqd.cli.top.top_frame import (
    DiagnoseRequest,
    LastStatus,
    PauseRequest,
    TerminalSize,
    TextOverlay,
    ViewState,
    frame,
)
from rmqd.cli.top.top_screen import KeyResult, Quit, handle_key, keys_in
from rmqd.daemon.http.status_view import call_time, number, rate
from rmqd.runtime.plain_text import format_age

WIDE, NARROW = TerminalSize(200, 50), TerminalSize(80, 24)


@pytest.fixture
def document() -> dict[str, Any]:
    """A daemon with two workers, two groups on the local engine and one on Spark, under load."""
    recorded: dict[str, Any] = json.loads((Path(__file__).parent / "status_two_workers_spark.json").read_text())
    return recorded


def lines_of(state: ViewState, document: dict[str, Any], size: TerminalSize, **last_status: Any) -> list[str]:
    """The frame as lines of text."""
    return drawn(state, LastStatus(document, **last_status), size).splitlines()


def drawn(state: ViewState, last_status: LastStatus, size: TerminalSize) -> str:
    console = Console(file=io.StringIO(), width=size.width, height=size.height, force_terminal=True, color_system=None)
    console.print(frame(state, last_status, size))
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def after(document: dict[str, Any], *keys: str, state: ViewState | None = None) -> KeyResult:
    """The result of pressing some keys."""
    pressed = KeyResult(state or ViewState())
    for key in keys:
        pressed = handle_key(pressed.state, key, document)
    return pressed


def named(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(group for group in document["groups"] if group["name"] == name)
    return found


def test_every_figure_of_a_group_comes_from_the_status(document: dict[str, Any]) -> None:
    shown = lines_of(ViewState(), document, WIDE)
    heading = next(line for line in shown if "GROUP" in line)
    titles = heading.replace("^", "").split()

    assert len(document["groups"]) == 3
    assert {group["engine"] for group in document["groups"]} == {"local", "spark"}
    assert len(document["workers"]) == 2
    for group in document["groups"]:
        (line,) = [line for line in shown if line.startswith(f" {group['name']} ")]
        cells = dict(zip(titles, line.split(), strict=False))
        recent = group["recent_latency"]
        assert cells == {
            "GROUP": group["name"],
            "STATE": group["state"],
            "IN/S": rate(group["rates"]["received"]),
            "OUT/S": rate(group["rates"]["handled"]),
            "FAIL": rate(group["rates"]["failed"]),
            "RETRY": rate(group["rates"]["retried"]),
            "LAG": number(group["lag"]),
            "AGE": format_age(group["lag_seconds"]),
            "P50": call_time(recent["p50"]),
            "P99": call_time(recent["p99"]),
            "DEAD": number(group["dead_letters"]["total"]),
            "QUEUES": str(len(group["queues"])),
            "MEMBERS": str(group["member_count"]),
        }
    every = sum(group["lag"] for group in document["groups"])
    assert f"lag {number(every)}," in shown[1]


def test_every_figure_of_a_queue_comes_from_the_status(document: dict[str, Any]) -> None:
    for group in document["groups"]:
        shown = lines_of(ViewState(group=group["name"]), document, WIDE)
        rows = [re.split(r"\s{2,}", line.strip()) for line in shown[5 : 5 + len(group["queues"])]]
        assert sorted(rows) == sorted(
            [
                f"{queue['topic']}{' (retry)' * (queue['is_retry'] and not queue['topic'].startswith('%'))}",
                queue["broker"],
                str(queue["queue"]),
                queue["state"].replace("_", " "),
                *("-" if queue[key] is None else str(queue[key]) for key in ("committed", "max")),
                number(queue["lag"]),
                format_age(queue["lag_seconds"]),
                number(queue["cached"]),
                "-" if queue["worker"] is None else str(queue["worker"]),
            ]
            for queue in group["queues"]
        )


@pytest.mark.parametrize("keys", ["", "enter", "> > > > > > >", "enter > > > > >"])
def test_a_daemon_without_a_cluster_shows_dashes_and_the_reason(keys: str, document: dict[str, Any]) -> None:
    """Unknown figures must not break the sorting by any column."""
    group = document["groups"][0]
    group |= {"lag": None, "lag_seconds": None, "not_ready_reason": "no name server answered"}
    group["queues"][0] |= {"committed": None, "lag": None, "lag_seconds": None}
    shown = lines_of(after(document, "home", *keys.split()).state, document, WIDE)

    assert any(re.search(r"\s-\s", line) for line in shown)
    document["groups"] = [group | {"queues": []}]
    assert " no name server answered" in lines_of(ViewState(), document, NARROW)
    assert "lag -" in lines_of(ViewState(), document, NARROW)[1]


@pytest.mark.parametrize("size", [NARROW, WIDE, TerminalSize(60, 12), TerminalSize(20, 5)])
def test_a_frame_is_as_large_as_the_terminal(size: TerminalSize, document: dict[str, Any]) -> None:
    wrong = []
    for keys in ("", "?", "d", "/", "p", "enter", "enter p", "enter ?"):
        shown = drawn(after(document, *keys.split()).state, LastStatus(document), size).removesuffix("\n").split("\n")
        if len(shown) != size.height or max(map(len, shown)) > size.width:
            wrong.append((keys, shown))
    assert wrong == []


def test_80_columns_show_the_most_important_figures(document: dict[str, Any]) -> None:
    heading = next(line for line in lines_of(ViewState(), document, NARROW) if "GROUP" in line)

    assert heading.split() == ["GROUP^", *"STATE IN/S OUT/S RETRY LAG AGE P50 P99 DEAD".split()]


def test_no_color_removes_only_the_colours(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    console.print(frame(ViewState(), LastStatus(document), NARROW))
    assert isinstance(console.file, io.StringIO)

    assert not re.search(r"\x1b\[(?:\d+;)*[34]\d[;m]", console.file.getvalue())
    assert "running" in console.file.getvalue()


def test_the_list_is_sorted_and_filtered(document: dict[str, Any]) -> None:
    names = [group["name"] for group in document["groups"]]

    def listed(*keys: str) -> list[str]:
        state = after(document, *keys).state
        return [row["name"] for row in state.rows(document)]

    assert listed() == sorted(names)
    assert listed("r") == sorted(names, reverse=True)
    by_in = sorted(names, key=lambda name: -named(document, name)["rates"]["received"])
    assert listed(">", ">") == by_in
    assert listed(">", ">", "r") == by_in[::-1]
    assert listed("<", ">") == sorted(names)
    part = names[0][:4]
    assert listed("/", *part.upper()) == [name for name in sorted(names) if part in name]
    assert listed("/", *part, "x", "enter") == []
    assert listed("/", *part, "x", "backspace", "enter", "escape") == sorted(names)


def test_the_cursor_stays_on_its_row_while_the_list_changes(document: dict[str, Any]) -> None:
    state = after(document, "down").state
    chosen = state.chosen(document)
    assert chosen is not None
    later = {**document, "groups": [{**chosen, "name": "aaa"}, *document["groups"]]}

    assert state.chosen(later) == chosen
    gone = {**document, "groups": [group for group in document["groups"] if group is not chosen]}
    assert state.chosen(gone) is not None
    assert after(document, "end").state.chosen(document) == state.rows(document)[-1]
    assert after(document, "end", "page up", "up", "j").state.chosen(document) == state.rows(document)[1]
    assert after({**document, "groups": []}, "down", "enter", "p", "d").state.chosen({**document, "groups": []}) is None


def test_a_pause_needs_confirmation(document: dict[str, Any]) -> None:
    name = sorted(group["name"] for group in document["groups"])[0]
    asked = after(document, "p")

    assert asked.wish is None
    assert lines_of(asked.state, document, NARROW)[-1].strip() == f"pause {name}? y/n"
    for no in ("n", "escape", "enter", "q", "p"):
        refused = after(document, no, state=asked.state)
        assert (refused.wish, refused.state.question, refused.state.notice) == (None, None, "nothing was changed")
    assert after(document, "y", state=asked.state).wish == PauseRequest("pause", name)
    named(document, name)["paused"] = True
    assert after(document, "p", "y").wish == PauseRequest("resume", name)


def test_a_single_queue_can_be_paused(document: dict[str, Any]) -> None:
    state = after(document, "enter").state
    queue = next(row for row in state.rows(document) if not row["is_retry"])
    on_it = state.with_listing(cursor=f"{queue['topic']}@{queue['broker']}:{queue['queue']}:{queue['worker']}")
    scope = {name: queue[name] for name in ("topic", "broker", "queue")}

    assert after(document, "p", "y", state=on_it).wish == PauseRequest("pause", state.group, **scope)
    named(document, state.group)["pauses"].append(scope)
    assert after(document, "p", "y", state=on_it).wish == PauseRequest("resume", state.group, **scope)


def test_a_diagnosis_is_opened_scrolled_and_closed(document: dict[str, Any]) -> None:
    opened = after(document, "d")
    assert isinstance(opened.wish, DiagnoseRequest)
    assert " running ..." in lines_of(opened.state, document, NARROW)[4]
    told = ViewState(pages=TextOverlay("rmqd diagnose", tuple(f"line {number}" for number in range(100))), page=10)

    assert " line 0" in lines_of(told, document, NARROW)
    turned = after(document, "page down", "down", state=told).state
    assert lines_of(turned, document, NARROW)[4] == " line 11"
    assert " line 99" in lines_of(after(document, "end", state=told).state, document, NARROW)
    assert after(document, "q", state=told).state.pages is None
    assert after(document, "?").state.pages is not None


def test_q_and_ctrl_c_quit_from_the_lists(document: dict[str, Any]) -> None:
    for key in ("q", "ctrl-c"):
        assert isinstance(after(document, key).wish, Quit)
        assert isinstance(after(document, "enter", key).wish, Quit)


def test_problems_of_the_chosen_group_are_shown_below_the_list(document: dict[str, Any]) -> None:
    group = document["groups"][0]
    group["findings"] = [
        {"cause": "failing_handler", "evidence": "all fail", "next": "mend it", "state": "active", "since": 1.0,
         "until": None, "queues": [], "queue_count": 0},
    ]  # fmt: skip
    chosen = ViewState().with_listing(cursor=group["name"])

    assert " failing_handler: all fail. Next: mend it" in lines_of(chosen, document, NARROW)
    group["failure"] = "no handler"
    assert " no handler" in lines_of(chosen, document, NARROW)


def test_a_daemon_that_does_not_answer_is_reported(document: dict[str, Any]) -> None:
    shown = lines_of(ViewState(), document, NARROW, age_seconds=75.0, error="no rmqd answers")

    assert shown[1] == " no answer for 1m15s, retrying: no rmqd answers"
    assert any(document["groups"][0]["name"] in line for line in shown)


def test_keys_are_read_as_terminals_send_them() -> None:
    assert list(keys_in("j\x1b[A\x1bOB\x1b[5~\x1b[1;5C\x1b\r\x7f\x03é")) == [
        "j", "up", "down", "page up", "escape", "enter", "backspace", "ctrl-c", "é",
    ]  # fmt: skip


def test_figures_are_short() -> None:
    cases = [
        (number(None), "-"), (number(99_999), "99,999"), (number(123_456), "123k"), (number(1_250_000), "1.2M"),
        (rate(0.0), "0"), (rate(0.04), "0.0"), (rate(12.34), "12.3"), (rate(1234.5), "1,234"),
        (rate(12_345.0), "12.3k"),
        (format_age(None), "-"), (format_age(0), "0s"), (format_age(0.04), "0s"),
        (format_age(9.94), "9.9s"), (format_age(9.96), "10s"),
        (format_age(59.9), "59s"),
        (format_age(432), "7m12s"), (format_age(11_100), "3h05m"),
        (format_age(255_600), "2d23h"), (format_age(8_640_000), "100d"),
        (call_time(None), "-"), (call_time(0.0002), "0.2ms"), (call_time(0.0123), "12ms"),
        (call_time(1.23), "1.2s"), (call_time(75.0), "1m15s"),
    ]  # fmt: skip
    assert [text for text, _ in cases] == [shown for _, shown in cases]
    assert max(len(shown) for _, shown in cases) <= 6


def test_a_snapshot_has_every_column(document: dict[str, Any]) -> None:
    heading, *rows = top_lines(document)

    assert heading.split()[:4] == ["GROUP", "STATE", "IN/S", "OUT/S"]
    assert [row.split()[0] for row in rows] == [group["name"] for group in document["groups"]]
