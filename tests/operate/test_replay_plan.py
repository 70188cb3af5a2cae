"""The file of messages that failed in a replay, and the progress of a replay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rmqd.errors import RmqdError
from rmqd.operate.replay.replay_plan import ReplayFailuresFile
from rmqd.operate.replay.replay_run import ReplayRun
from tests.consumer.blocks import QUEUE


def test_a_damaged_file_of_failures_is_named_and_stays(tmp_path: Path) -> None:
    file = ReplayFailuresFile(tmp_path / "failures.jsonl")
    assert file.read() == []
    one = {"topic": "orders", "broker": "broker-a", "queue": 0, "offset": 7}
    file.add(one)
    assert file.read() == [one]
    content = file.path.read_bytes() + b"\xff\n"
    file.path.write_bytes(content)
    with pytest.raises(RmqdError, match=rf"{file.path}, .* cannot be read"):
        file.read()
    assert file.path.read_bytes() == content


def test_messages_deleted_after_the_plan_was_made_are_reported() -> None:
    """They are passed, but the handler never gets them."""
    run = ReplayRun.__new__(ReplayRun)
    snapshot = SimpleNamespace(queues=[], topics=[SimpleNamespace(handled={"acked": 4, "retried": 1}, lost=6)])
    parts = {"_consumer": SimpleNamespace(snapshot=lambda: snapshot), "_windows": {}, "_passed": {QUEUE: 10}}
    vars(run).update(parts, _plan=SimpleNamespace(messages=10))
    progress = run._progress()
    assert (progress.is_done, progress.outcomes) == (True, {"acked": 4, "retried": 1, "lost": 6})
