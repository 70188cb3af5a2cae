"""`rmqd new handler`: the generated project works without changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.in_process import rmqd
from tests.testing.user_folder import UserFolder


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_project_passes_its_own_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = rmqd("new", "handler", "order-book", "--topic", "a-topic")
    assert made.code == 0
    project = UserFolder(tmp_path / "order-book")
    assert "order-book/order_book/handler.py" in made.out
    code, out = project.pytest("-q", "-p", "no:asyncio")
    assert (code, "3 passed" in out) == (0, True), out
    for check in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy", "."]):
        code, out = project.python("-m", *check, seconds=600)  # mypy reads all of rmqd, too
        assert code == 0, out
    code, out = project.python("-m", "rmqd", "check")
    assert code == 0, out
    code, out = project.python("-m", "rmqd", "test", "tests")
    assert (code, "1 as expected" in out) == (0, True), out
