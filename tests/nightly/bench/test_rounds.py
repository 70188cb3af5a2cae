"""The periodic work for idle queues needs no more instructions than recorded."""

from __future__ import annotations

import shutil

import pytest

from bench import rounds

pytestmark = pytest.mark.process


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is missing: apt-get install valgrind")
def test_a_round_needs_no_more_instructions_than_recorded() -> None:
    """If the higher cost is intended, run `python -m bench.rounds --record`."""
    before = rounds.recorded()
    if not before:
        pytest.skip("nothing is recorded for this version of Python")
    now = rounds.instructions()
    assert {name for name in before if now[name] > before[name] * (1 + rounds.TOLERATED_SHARE)} == set()
