"""The sink `delta`: rows of a table of Delta Lake, added or by key, each batch once.

Delta Lake keeps with each commit the last batch of a query (`txnAppId`, `txnVersion`), and leaves out what is not
later. Without a word, and without running the batch's plan: what a stateful query keeps would be lost by that, and so
would rows after a checkpoint that was taken back. So each commit says its batch in `userMetadata` too, where the first
batch after a start looks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.pipelines.micro_batch import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from rmqd.config.model.spark import SinkConfig

EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
CONF: Final = (
    "{spark.jars.packages: 'io.delta:delta-spark_4.2_2.13:VERSION', "
    f"spark.sql.extensions: {EXTENSION}, spark.sql.catalog.spark_catalog: {CATALOG}}}"
)
_SOURCE: Final = "rmqd_batch"
_LATEST: Final = "rmqd_latest"
_ROW: Final = "rmqd_row"
_LOOKED_THROUGH: Final = 100  # commits: its own last one is among them unless others wrote as many since
_NOT_FOR_THIS_SPARK: Final = tuple(
    f"java.lang.{name}Error" for name in ("NoSuchMethod", "NoSuchField", "NoClassDefFound", "IncompatibleClassChange")
)
# what a MERGE is told by its session, as the options of a write are
_SESSION: Final = {
    "txnAppId": "spark.databricks.delta.write.txnAppId",
    "txnVersion": "spark.databricks.delta.write.txnVersion",
    "userMetadata": "spark.databricks.delta.commitInfo.userMetadata",
}


class DeltaTable:
    """One table, at a path. For one query at a time, on the driver."""

    def __init__(self, spark: SparkSession, sink: SinkConfig, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._sink = sink
        self._options = dict(options)
        self._table = f"delta.{_quoted(sink.path)}"
        self._may_be_repeated = True

    def prepare(self, schema: StructType) -> None:
        """Make the table unless it is there. Raises RmqdError where Delta Lake is not, and for columns that are not."""
        java = self._spark.sparkContext._jvm
        assert java is not None
        if not _has_class(java, EXTENSION):
            raise RmqdError(
                "sink.format: delta needs Delta Lake's package, which Spark does not bring; "
                f"accepted: parquet, or spark.conf: {CONF} with a version made for this Spark"
            )
        problems: list[object] = [
            f"sink.{key}: the pipeline's rows have no column {name}; accepted: {', '.join(schema.fieldNames())}"
            for key in ("keys", "order_by", "partition_by")
            for name in getattr(self._sink, key)
            if name not in schema.fieldNames()
        ]
        if problems:
            raise ConfigError(problems)
        self._appending(self._spark.createDataFrame([], schema)).mode("ignore").save(self._sink.path)
        found = self._look().schema
        there = found.fieldNames()
        missing = [name for name in schema.fieldNames() if name.lower() not in map(str.lower, there)]
        if missing and not self._evolves:
            raise ConfigError([
                f"sink.path: the table {self._sink.path} has no column {', '.join(missing)}; accepted: ALTER TABLE "
                f"{self._table} ADD COLUMNS, or sink.options: {{mergeSchema: true}}"
            ])  # fmt: skip

        problems = [
            f"sink.order_by: {name} is {kind} in the pipeline and {found[name].dataType.simpleString()} in the table "
            f"{self._sink.path}, which may tell fewer values apart; expected: the same type in both"
            for name in self._sink.order_by
            if name in there and (kind := schema[name].dataType.simpleString()) != found[name].dataType.simpleString()
        ]
        if problems:
            raise ConfigError(problems)

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Have a batch's rows in the table, once however often it is repeated.

        Raises RmqdError where the table has a later batch of the query, or this one with other messages.
        """
        if self._may_be_repeated and self._is_written(batch):
            # yet what a stateful query keeps is only kept when its plan runs
            frame.write.format("noop").mode("overwrite").save()
        elif self._sink.keys:
            self._merge(frame, batch)
        else:
            self._appending(frame).options(**_named(batch)).save(self._sink.path)
        self._may_be_repeated = False

    def _look(self) -> DataFrame:
        """The table, once its content can be read: another Spark's Delta Lake fails there, and not before."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        table = self._spark.read.format("delta").load(self._sink.path)
        try:
            table.isEmpty()
        except Py4JJavaError as error:
            said = error.java_exception.toString()
            if not said.startswith(_NOT_FOR_THIS_SPARK):
                raise
            raise RmqdError(
                f"sink.format: the Delta Lake of spark.conf is not made for Spark {self._spark.version}: {said}; "
                "accepted: a version that is, or the Spark that this one is made for"
            ) from None
        return table

    @property
    def _evolves(self) -> bool:
        return self._options.get("mergeSchema", "").lower() == "true"

    def _appending(self, frame: DataFrame) -> Any:
        writer = frame.write.format("delta").mode("append").options(**self._options)
        return writer.partitionBy(*self._sink.partition_by) if self._sink.partition_by else writer

    def _is_written(self, batch: MicroBatch) -> bool:
        history = self._spark.sql(f"DESCRIBE HISTORY {self._table} LIMIT {_LOOKED_THROUGH}")
        for (noted,) in history.select("userMetadata").collect():
            words = (noted or "").split()
            if len(words) != 4 or words[:2] != ["rmqd", batch.query]:
                continue
            if int(words[2]) < batch.number:
                return False
            if words[2:] == [str(batch.number), batch.plan_id]:
                return True
            raise RmqdError(
                f"the table {self._sink.path} has batch {words[2]} of this query already, and now comes batch "
                f"{batch.number} with other messages: was the checkpoint taken back? Delta Lake would leave it out; a "
                "new checkpoint writes it"
            )
        return False

    def _merge(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Rows replace those of their key. The topics are read once, however often Delta Lake looks at the rows."""
        rows = self._last_of_each_key(frame).persist()
        try:
            if not self._sink.order_by:
                self._see_one_of_each_key(rows, batch)
            rows.createOrReplaceTempView(_SOURCE)
            evolving = "WITH SCHEMA EVOLUTION " if self._evolves else ""
            with _told(rows.sparkSession, _named(batch)):
                rows.sparkSession.sql(
                    f"MERGE {evolving}INTO {self._table} AS t USING {_SOURCE} AS s "
                    f"ON {' AND '.join(f't.{name} <=> s.{name}' for name in map(_quoted, self._sink.keys))} "
                    f"WHEN MATCHED{self._unless_later()} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
        finally:
            rows.unpersist()

    def _last_of_each_key(self, frame: DataFrame) -> DataFrame:
        if not self._sink.order_by:
            return frame
        from pyspark.sql import Window
        from pyspark.sql.functions import col, monotonically_increasing_id, row_number

        # of rows that are equal in order the one counts that comes last in its partition, so in its queue
        frame = frame.withColumn(_ROW, monotonically_increasing_id())
        newest = [*(col(_quoted(name)).desc_nulls_last() for name in self._sink.order_by), col(_ROW).desc()]
        of_key = Window.partitionBy(*map(_quoted, self._sink.keys)).orderBy(*newest)
        return frame.withColumn(_LATEST, row_number().over(of_key)).where(f"{_LATEST} = 1").drop(_LATEST, _ROW)

    def _see_one_of_each_key(self, rows: DataFrame, batch: MicroBatch) -> None:
        if rows.groupBy(*map(_quoted, self._sink.keys)).count().where("count > 1").limit(1).collect():
            raise RmqdError(
                f"{self._sink.path}: batch {batch.number} has several rows of one key ({', '.join(self._sink.keys)}), "
                "and which of them counts is not said; accepted: sink.order_by, columns by which the last one is known"
            )

    def _unless_later(self) -> str:
        """A row that is there and later stays; null is before everything, as Spark compares structs."""
        if not self._sink.order_by:
            return ""
        names = [*map(_quoted, self._sink.order_by)]
        there, coming = (", ".join(f"{side}.{name}" for name in names) for side in "ts")
        return f" AND struct({coming}) >= struct({there})"


def _named(batch: MicroBatch) -> dict[str, str]:
    note = f"rmqd {batch.query} {batch.number} {batch.plan_id}"
    return {"txnAppId": batch.query, "txnVersion": str(batch.number), "userMetadata": note}


@contextmanager
def _told(session: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """A session of which the next statements are a batch's."""
    for name, value in options.items():
        session.conf.set(_SESSION[name], value)
    try:
        yield
    finally:
        for name in options:
            session.conf.unset(_SESSION[name])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _has_class(java: Any, name: str) -> bool:
    from py4j.protocol import Py4JError

    try:
        java.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JError:
        return False
    return True
