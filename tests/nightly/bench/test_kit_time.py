"""The benchmark of the test kit: its cases run, and it prints their times."""

from __future__ import annotations

import logging
import re

import pytest

from bench import kit_time


def test_the_benchmark_prints_both_times_and_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit_time, "ROUNDS", 1)
    case, walk = kit_time.measure()
    assert re.search(r"takes \d+ ms, of 200 allowed", case)
    assert re.search(r"16 retries .* \d+ ms, of 1000 allowed", walk)
    assert not logging.root.manager.disable
