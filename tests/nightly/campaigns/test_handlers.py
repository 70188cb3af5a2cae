"""A short campaign of handlers for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly.campaigns.counterparts import KafkaTopic, OtherTopic
from tests.nightly.campaigns.handlers import Handlers, HandlersPlan
from tests.rocketmq import RealCluster
from tests.servers.kafka import KafkaServer


@pytest.mark.slow
@pytest.mark.usefixtures("postgresql", "mariadb", "redis_server")
@pytest.mark.parametrize(
    "counterpart", ["postgresql-insert", "sql-mariadb-once", "webhook", "redis-stream", "celery", "parquet"]
)
def test_a_counterpart_killed_under_load_loses_nothing(rocketmq: RealCluster, tmp_path: Path, counterpart: str) -> None:
    plan = HandlersPlan(counterpart, 1, messages=1000, kills=2, away_seconds=(0.2, 1.5), retry_for_seconds=1.0)

    result = Handlers(plan, rocketmq, tmp_path / "run").run()

    print(result.report())
    assert result.passed, result.report()
    assert result.failed_batches, "a kill fails batches"


@pytest.mark.slow
@pytest.mark.usefixtures("postgresql")
@pytest.mark.parametrize("counterpart", ["once", "offset-store-postgresql"])
def test_rows_are_added_once_despite_kills_of_rmqd_and_the_database(
    rocketmq: RealCluster, tmp_path: Path, counterpart: str
) -> None:
    plan = HandlersPlan(counterpart, 3, messages=2000, kills=1, daemon_kills=3, away_seconds=(0.2, 1.5))

    result = Handlers(plan, rocketmq, tmp_path / "run").run()

    print(result.report())
    assert result.passed, result.report()


@pytest.mark.slow
@pytest.mark.usefixtures("postgresql", "redis_server")
@pytest.mark.parametrize("store", ["sqlite", "redis", "postgresql"])
def test_handled_messages_are_skipped_despite_kills_of_rmqd_and_the_database(
    rocketmq: RealCluster, tmp_path: Path, store: str
) -> None:
    """Only messages in flight at a kill may be handled twice."""
    plan = HandlersPlan(
        f"deduplicate-{store}", 4, messages=1500, kills=1, daemon_kills=2, per_second=300.0, away_seconds=(0.2, 1.5)
    )

    result = Handlers(plan, rocketmq, tmp_path / "run").run()

    print(result.report())
    assert result.passed, result.report()


@pytest.mark.slow
def test_a_target_cluster_whose_broker_is_killed_loses_nothing(
    rocketmq: RealCluster, rocketmq_faulty: RealCluster, tmp_path: Path
) -> None:
    plan = HandlersPlan("rocketmq", 1, messages=1000, kills=1, away_seconds=(0.2, 1.5), retry_for_seconds=1.0)

    result = Handlers(plan, rocketmq, tmp_path / "run").run(OtherTopic(rocketmq_faulty))

    print(result.report())
    assert result.passed, result.report()
    assert result.failed_batches, "a kill fails batches"


@pytest.mark.slow
def test_a_kafka_broker_killed_under_load_loses_nothing(
    rocketmq: RealCluster, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    plan = HandlersPlan("kafka", 1, messages=1000, kills=1, away_seconds=(0.2, 1.5), retry_for_seconds=1.0)

    result = Handlers(plan, rocketmq, tmp_path / "run").run(KafkaTopic(kafka_server))

    print(result.report())
    assert result.passed, result.report()
    assert result.failed_batches, "a kill fails batches"
