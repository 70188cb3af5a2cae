"""Fifteen times as many configurations as tests/config tries."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.config.any_configuration import CONFIGURATIONS, check_problems_have_places


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@settings(max_examples=300)
@given(CONFIGURATIONS)
def test_whatever_stands_in_a_configuration_it_loads_or_has_located_problems(data: dict[str, object]) -> None:
    check_problems_have_places(data)
