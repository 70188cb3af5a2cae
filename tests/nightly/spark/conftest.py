"""Fixtures of the daily tests on Spark."""

from __future__ import annotations

from tests.spark.conftest import _kept_until_the_end_of_the_test, broker, embedded

__all__ = ["_kept_until_the_end_of_the_test", "broker", "embedded"]
