"""Groups on Spark with a pipeline, and their queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmqd.config.model.root_model import RootConfig
from rmqd.spark.engine.checkpoint_generations import CheckpointGeneration
from rmqd.spark.session.group_spec import GroupSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOP: Final = Path(__file__).parents[2]
GROUP: Final = "archive"
SECONDS: Final = 120
NO_KEYS: Final[Mapping[str, Any]] = {}


def order_of(nameserver: str, **values: Any) -> GroupSpec:
    """A group on Spark that reads two topics to their ends, and stops."""
    group = {
        "engine": "spark",
        "subscriptions": {"orders": "*", "refunds": "*"},
        "consume_from_where": "first_offset",
        "spark": {"trigger": "available_now"},
        **values,
    }
    return GroupSpec(GROUP, RootConfig.model_validate({"nameserver": nameserver, "groups": {GROUP: group}}))


def archive_order(nameserver: str, folder: Path, group: Mapping[str, Any] = NO_KEYS, **options: Any) -> GroupSpec:
    """A group with the pipeline `archive`, which writes to `archive` below a folder; `group` has more of its keys."""
    sink = {"format": "parquet", "path": str(folder / "archive"), "partition_by": ["date", "topic"]}
    return order_of(nameserver, pipeline={"plugin": "archive", "options": options}, sink=sink, **group)


def kept_order(nameserver: str, folder: Path) -> GroupSpec:
    """The same group, with its checkpoint generations below the folder."""
    return archive_order(nameserver, folder, {"spark": {"trigger": "available_now", "checkpoint": f"{folder}/kept"}})


def start(spark: SparkSession, order: GroupSpec, folder: Path) -> StreamingQuery:
    """Start the group's query with the checkpoint `checkpoint` below a folder."""
    return start_generation(spark, order, folder, CheckpointGeneration(1, str(folder / "checkpoint"), None))


def start_generation(
    spark: SparkSession, order: GroupSpec, folder: Path, generation: CheckpointGeneration
) -> StreamingQuery:
    """Start the group's query with a generation's checkpoint and start offsets."""
    from rmqd.spark.pipelines.pipeline_query import pipeline_query

    return pipeline_query(
        spark,
        order,
        checkpoint=generation.path,
        starting=generation.start_offsets,
        pause_file=str(folder / "pause"),
        shared_folder=f"{generation.path.rpartition('/')[0]}/kept",
    )
