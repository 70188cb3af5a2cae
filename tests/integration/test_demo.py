"""`rmqd demo` as a process: it ends by itself, and its sums are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import rmqd

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _own_folder_for_what_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demo leaves its log."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def figure(summary: str, label: str) -> int:
    """A number of the closing summary."""
    found = re.search(rf"^  {label} +([\d,]+)", summary, re.MULTILINE)
    assert found is not None, summary
    return int(found[1].replace(",", ""))


def check_sums(summary: str) -> None:
    """Everything that was sent is somewhere, and nothing is there twice."""
    parts = ("acknowledged", "dead letters", "waiting for a retry")
    assert figure(summary, "sent") == sum(figure(summary, label) for label in parts), summary
    assert "not accounted for" not in summary


def test_it_ends_after_as_many_orders_as_asked_for() -> None:
    ended = rmqd("demo", "--messages", "45")

    assert ended.code == 0, ended.err
    assert figure(ended.out, "sent") == 45
    check_sums(ended.out)
