"""`rmqd demo` as a process: it ends, and its sums are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import rmqd

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _own_folder_for_what_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demo keeps its log in a temporary folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def figure(summary: str, label: str) -> int:
    """A number of the closing summary."""
    found = re.search(rf"^  {label} +([\d,]+)", summary, re.MULTILINE)
    assert found is not None, summary
    return int(found[1].replace(",", ""))


def check_sums(summary: str) -> None:
    """Each message that was sent is counted exactly once."""
    parts = ("acknowledged", "dead letters", "waiting for a retry")
    assert figure(summary, "sent") == sum(figure(summary, label) for label in parts), summary
    assert "not accounted for" not in summary


def test_the_demo_ends_after_the_requested_number_of_messages() -> None:
    ended = rmqd("demo", "--messages", "45")

    assert ended.code == 0, ended.err
    assert figure(ended.out, "sent") == 45
    check_sums(ended.out)
