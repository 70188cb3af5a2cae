"""A broken hook stops a daemon with worker processes, and `rmqd check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.test_hooks import Install, check_refused, install

__all__ = ["install"]


@pytest.mark.process
def test_rmqd_run_with_workers_refuses_to_start_with_a_broken_hook(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(("run", "--workers", "2"), ("check",), install=install, folder=tmp_path)
