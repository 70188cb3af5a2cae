"""Secrets in the output of twenty daemons with fifty groups each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.test_secrets import leaks, placements


@pytest.mark.parametrize("seed", range(1, 21))
async def test_no_output_shows_a_secret(tmp_path: Path, seed: int) -> None:
    assert await leaks(tmp_path, placements(seed, 50)) == []
