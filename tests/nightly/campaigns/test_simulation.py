"""The simulation campaign: resumed runs, and failed histories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.nightly.campaigns import simulation

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_an_interrupted_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "PART", 2)
    before = {"first": 1, "histories": 2, "wrong": {"2": "lost: k1"}, "twice": {"cut": 3}, "hours": 1.0, "seconds": 9.0}
    (tmp_path / "1.json").write_text(json.dumps(before))
    result = simulation.run(1, 4, tmp_path)
    assert result.wrong == {"2": "lost: k1"}
    assert [part.first for part in result.parts] == [1, 3]
    first_seed, histories, wrong, *_ = result.cells()
    assert (first_seed, histories, wrong) == (1, 4, "1 (seeds 2)")
