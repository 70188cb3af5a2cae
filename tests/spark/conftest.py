"""A fresh embedded broker for each test, and clients that end with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.spark.handlers.handler_tasks import stop_task_handlers
from rmqd.spark.session.spark_cluster import close_clusters
from rmqd.testing.rocketmq import RocketMQ
from tests.spark.embedded_broker import EmbeddedBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An empty broker."""
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def embedded() -> Iterator[RocketMQ]:
    """The broker of the test kit, in memory."""
    with RocketMQ() as rocketmq:
        yield rocketmq


@pytest.fixture(autouse=True)
def _kept_until_the_end_of_the_test() -> Iterator[None]:
    """End clients and handlers that otherwise live as long as their process."""
    yield
    stop_task_handlers()
    close_clusters()
    if writer := sys.modules.get("rmqd.spark.sink.sink_writer"):  # it imports PySpark, which may not be installed
        writer.close_row_senders()
    if fetch := sys.modules.get("rmqd.spark.source.range_fetch"):
        fetch.close_kept_connections()
