"""The file of messages that failed in a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from rmqd.operate.replay.replay_plan import ReplayFailuresFile


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
