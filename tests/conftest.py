"""Fixtures and guards of every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

pytest_plugins = ["tests.rocketmq.fixtures", "tests.spark.fixtures", "tests.conformance.plugin"]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A test that sets logging up, as the daemon does, leaves the next one's alone."""
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, logging.root.manager.disable
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.disable(disabled)
    structlog.reset_defaults()
