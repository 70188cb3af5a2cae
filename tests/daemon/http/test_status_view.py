"""A group's state in the words of `rmqd status` and `rmqd top`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from rmqd.consumer.health.causes import make_problem
from rmqd.daemon.http.status_view import is_alarming, problem_line, skipped_line, state_text, state_word


@pytest.mark.parametrize(
    ("changed", "text", "word"),
    [
        ({}, "running", "running"),
        ({"problems": [{"cause": "topic_missing"}]}, "running, topic_missing", "problem"),
        ({"problems": [{"cause": "failing_handler"}], "failing": True}, "running, failing", "failing"),
        (
            {"problems": [{"cause": "broker_unreachable"}], "queues": [{"state": "stuck"}]},
            "running, every queue is stuck, broker_unreachable",
            "stuck",
        ),
        ({"problems": [{"cause": "poison_message"}], "paused": True}, "running, paused, poison_message", "paused"),
        ({"problems": [{"cause": "topic_missing"}], "state": "failed"}, "failed, topic_missing", "failed"),
    ],
)
def test_the_state_of_a_group_shows_its_problems(changed: dict[str, Any], text: str, word: str) -> None:
    group = {"state": "running", "queues": [], "paused": False, "failing": False, "problems": [], "failure": None}
    assert (state_text(group | changed), state_word(group | changed)) == (text, word)
    assert is_alarming(group | changed) == bool(changed)


def test_evidence_that_ends_with_a_full_stop_gets_no_second_full_stop() -> None:
    line = problem_line(asdict(make_problem("no_route", "see the FAQ for further details.")))
    assert line.startswith("no_route: see the FAQ for further details. Next: start the broker")


def test_one_skipped_message_is_counted_in_the_singular() -> None:
    group = {"left_out": {"late_rows": 1, "lost_messages": 2}, "totals": {"deduplicated": 1}}
    assert skipped_line(group) == "skipped since the start: 1 late row, 2 lost messages, 1 repeated message"
