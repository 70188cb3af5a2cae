"""Spark for nightly tests: Delta Lake in the session, and an archive of classes for the many drivers that start."""

from __future__ import annotations

import pytest

from tests.nightly.spark.class_archive import share_classes
from tests.spark.fixtures import missing_reason


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let drivers take their classes from the archive. It is recorded for the first test that needs Spark."""
    if item.get_closest_marker("spark") and not missing_reason():
        share_classes()


@pytest.fixture(scope="session")
def spark_conf() -> dict[str, str]:
    """Properties of Delta Lake, if it has a release for the Spark that is installed."""
    from tests.nightly.spark.delta_lake import delta_conf  # needs PySpark, which other nightly tests do not

    return delta_conf()
