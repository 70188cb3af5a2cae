"""Fixtures of tests of commands, which run in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cluster import Cluster


@pytest.fixture(autouse=True)
def _as_on_a_machine_without_rmqd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, no variables of rmqd, and a terminal of 120 columns."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RMQD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One embedded broker for the module, in a thread of this process. Each test uses different names."""
    with Cluster() as running:
        yield running
