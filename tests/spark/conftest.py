"""A fresh embedded broker for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.embedded_broker import EmbeddedBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Empty."""
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield broker
