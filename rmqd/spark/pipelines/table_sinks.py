"""The sinks `delta` and `jdbc`.

`delta` appends rows to a Delta Lake table, or merges them by key, each batch exactly once. Delta Lake stores a query's
last batch in each commit (`txnAppId`, `txnVersion`). If the next batch has no higher number, Delta Lake silently skips
it, without executing the batch's plan. This would lose the state of a stateful query, and the rows after a reset of the
checkpoint to an earlier batch. So each commit also names its batch in `userMetadata`. Before the first batch after a
start, the sink checks the names in earlier commits.

`jdbc` inserts rows at least once, or exactly once if `sink.batch_column` names a column for the batch of each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Window
from pyspark.sql.functions import col, lit, monotonically_increasing_id, row_number

from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.pipelines.pipeline_counts import MicroBatch
from rmqd.spark.session.hadoop_folder import java_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from rmqd.config.model.spark_model import SinkConfig


DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DELTA_CONF: Final = (
    "{spark.jars.packages: 'io.delta:delta-spark_4.2_2.13:VERSION', "
    f"spark.sql.extensions: {DELTA_EXTENSION}, spark.sql.catalog.spark_catalog: {DELTA_CATALOG}}}"
)
_SOURCE: Final = "rmqd_batch"
_LATEST: Final = "rmqd_latest"
_ROW: Final = "rmqd_row"
_MAX_COMMITS: Final = 100  # number of newest commits to search for the sink's last commit; other writers commit too
_NOT_FOR_THIS_SPARK: Final = tuple(
    f"java.lang.{name}Error" for name in ("NoSuchMethod", "NoSuchField", "NoClassDefFound", "IncompatibleClassChange")
)
# A MERGE statement takes no write options. Delta Lake reads them from these session properties instead.
_SESSION: Final = {
    "txnAppId": "spark.databricks.delta.write.txnAppId",
    "txnVersion": "spark.databricks.delta.write.txnVersion",
    "userMetadata": "spark.databricks.delta.commitInfo.userMetadata",
}


class DeltaSink:
    """The Delta Lake table at `sink.path`. Used on the driver, by one query at a time."""

    def __init__(self, spark: SparkSession, sink: SinkConfig, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._sink = sink
        self._options = dict(options)
        self._table = f"delta.{_quoted(sink.path)}"
        self._may_be_repeated = True

    def prepare(self, schema: StructType) -> None:
        """Create a missing table, and check the columns. Raises RmqdError for problems, or if Delta Lake is missing."""
        if not _has_class(_java(self._spark), DELTA_EXTENSION):
            raise RmqdError(
                "sink.format: delta needs the Delta Lake package, which Spark does not contain; "
                f"use parquet, or set spark.conf: {DELTA_CONF} with a version for this Spark"
            )
        problems: list[object] = [
            f"sink.{key}: the pipeline's rows have no column {name}; expected one of {', '.join(schema.fieldNames())}"
            for key in ("keys", "order_by", "partition_by")
            for name in getattr(self._sink, key)
            if name not in schema.fieldNames()
        ]
        if problems:
            raise ConfigError(problems)
        self._appending(self._spark.createDataFrame([], schema)).mode("ignore").save(self._sink.path)
        found = self._read_table().schema
        there = found.fieldNames()
        missing = [name for name in schema.fieldNames() if name.lower() not in map(str.lower, there)]
        if missing and not self._evolves:
            raise ConfigError([
                f"sink.path: the table {self._sink.path} has no column {', '.join(missing)}; run ALTER TABLE "
                f"{self._table} ADD COLUMNS, or set sink.options: {{mergeSchema: true}}"
            ])  # fmt: skip

        problems = [
            f"sink.order_by: {name} is {kind} in the pipeline and {found[name].dataType.simpleString()} in the table "
            f"{self._sink.path}, which may distinguish fewer values; expected the same type in both"
            for name in self._sink.order_by
            if name in there and (kind := schema[name].dataType.simpleString()) != found[name].dataType.simpleString()
        ]
        if problems:
            raise ConfigError(problems)

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Write a batch's rows to the table, exactly once even if the batch is repeated.

        Raises RmqdError if the table has a later batch of the query, or the same batch with other messages.
        """
        if self._may_be_repeated and self._is_written(batch):
            # execute the plan of a written batch too, because only this updates the state of a stateful query
            frame.write.format("noop").mode("overwrite").save()
        elif self._sink.keys:
            self._merge(frame, batch)
        else:
            self._appending(frame).options(**_named(batch)).save(self._sink.path)
        self._may_be_repeated = False

    def _read_table(self) -> DataFrame:
        """Return the table. Raises RmqdError if a test read shows that Delta Lake is for another Spark version."""
        table = self._spark.read.format("delta").load(self._sink.path)
        try:
            table.isEmpty()
        except Py4JJavaError as error:
            said = error.java_exception.toString()
            if not said.startswith(_NOT_FOR_THIS_SPARK):
                raise
            raise RmqdError(
                f"sink.format: the Delta Lake in spark.conf is not built for Spark {self._spark.version}: {said}; "
                "use a Delta Lake version for this Spark, or the Spark version of this Delta Lake"
            ) from None
        return table

    @property
    def _evolves(self) -> bool:
        return self._options.get("mergeSchema", "").lower() == "true"

    def _appending(self, frame: DataFrame) -> Any:
        writer = frame.write.format("delta").mode("append").options(**self._options)
        return writer.partitionBy(*self._sink.partition_by) if self._sink.partition_by else writer

    def _is_written(self, batch: MicroBatch) -> bool:
        history = self._spark.sql(f"DESCRIBE HISTORY {self._table} LIMIT {_MAX_COMMITS}")
        for (noted,) in history.select("userMetadata").collect():
            words = (noted or "").split()
            if len(words) != 4 or words[:2] != ["rmqd", batch.query_id]:
                continue
            if int(words[2]) < batch.number:
                return False
            if words[2:] == [str(batch.number), batch.offset_log_id]:
                return True
            raise RmqdError(
                f"the table {self._sink.path} already has batch {words[2]} of this query, and batch {batch.number} "
                "has different messages: was the checkpoint reset? Delta Lake would skip the batch; a new "
                "checkpoint writes it"
            )
        return False

    def _merge(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Replace the table's rows by key. The batch is cached, because Delta Lake may read its rows several times."""
        rows = self._last_of_each_key(frame).persist()
        try:
            if not self._sink.order_by:
                self._see_one_of_each_key(rows, batch)
            rows.createOrReplaceTempView(_SOURCE)
            evolving = "WITH SCHEMA EVOLUTION " if self._evolves else ""
            with _attributed(rows.sparkSession, _named(batch)):
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
        # among rows with equal order columns, keep the last row of a partition, which is the last of its queue
        frame = frame.withColumn(_ROW, monotonically_increasing_id())
        newest = [*(col(_quoted(name)).desc_nulls_last() for name in self._sink.order_by), col(_ROW).desc()]
        of_key = Window.partitionBy(*map(_quoted, self._sink.keys)).orderBy(*newest)
        return frame.withColumn(_LATEST, row_number().over(of_key)).where(f"{_LATEST} = 1").drop(_LATEST, _ROW)

    def _see_one_of_each_key(self, rows: DataFrame, batch: MicroBatch) -> None:
        if rows.groupBy(*map(_quoted, self._sink.keys)).count().where("count > 1").limit(1).collect():
            raise RmqdError(
                f"{self._sink.path}: batch {batch.number} has several rows with the same key "
                f"({', '.join(self._sink.keys)}); set sink.order_by to the columns that determine the last one"
            )

    def _unless_later(self) -> str:
        """Return the MERGE condition that keeps a later row of the table. In structs, Spark orders nulls first."""
        if not self._sink.order_by:
            return ""
        names = [*map(_quoted, self._sink.order_by)]
        there, coming = (", ".join(f"{side}.{name}" for name in names) for side in "ts")
        return f" AND struct({coming}) >= struct({there})"


def _named(batch: MicroBatch) -> dict[str, str]:
    note = f"rmqd {batch.query_id} {batch.number} {batch.offset_log_id}"
    return {"txnAppId": batch.query_id, "txnVersion": str(batch.number), "userMetadata": note}


@contextmanager
def _attributed(session: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set write options as session properties (`_SESSION`), so that statements in this context name their batch."""
    for name, value in options.items():
        session.conf.set(_SESSION[name], value)
    try:
        yield
    finally:
        for name in options:
            session.conf.unset(_SESSION[name])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _java(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _has_class(java: Any, name: str) -> bool:
    try:
        java.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JError:
        return False
    return True


class JdbcSink:
    """A table of a JDBC database. `spark.conf` must add the database's JDBC driver to the JVM of the Spark driver."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], batch_column: str) -> None:
        self._spark = spark
        self._options = dict(options)
        self._column = batch_column
        self._may_be_repeated = True

    def prepare(self, schema: StructType) -> None:
        """Check the batch column and the connection. Raises ConfigError, and RmqdError for connection errors."""
        if self._column in schema.fieldNames():
            raise ConfigError([f"sink.batch_column: the pipeline's rows already have a column {self._column}"])
        self._ask(lambda connection: None)

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Insert a batch's rows. With a batch column, first delete rows that an earlier attempt has inserted."""
        if self._column:
            name = f"{batch.query_id}/{batch.number}"
            if self._may_be_repeated:  # only the first batch after a start may be a repetition
                self._ask(lambda connection: self._forget(connection, name))
            frame = frame.withColumn(self._column, lit(name))
        frame.write.format("jdbc").options(**self._options, **self._types()).mode("append").save()
        self._may_be_repeated = False

    def _types(self) -> dict[str, str]:
        """Return the option that sets the type of the batch column if Spark creates the table."""
        if not self._column or "createTableColumnTypes" in self._options:
            return {}
        return {"createTableColumnTypes": f"`{self._column}` VARCHAR(64)"}

    def _forget(self, connection: Any, name: str) -> None:
        if not self._jdbc.JdbcUtils.tableExists(connection, self._jdbc.JdbcOptionsInWrite(self._scala_options())):
            return  # Spark creates the table with the first rows
        statement = connection.prepareStatement(
            f"DELETE FROM {self._options['dbtable']} WHERE {self._dialect().quoteIdentifier(self._column)} = ?"
        )
        try:
            statement.setString(1, name)
            statement.executeUpdate()
        finally:
            statement.close()

    def _ask(self, work: Any) -> None:
        # errors show the URL without its parameters, which may contain a password
        url = self._options["url"].partition("?")[0].partition(";")[0]
        with java_errors(f"sink {self._options['dbtable']} of {url}"):
            options = self._jdbc.JDBCOptions(self._scala_options())
            connection = self._dialect().createConnectionFactory(options).apply(-1)
            try:
                work(connection)
            finally:
                connection.close()

    @property
    def _jdbc(self) -> Any:
        return _java(self._spark).org.apache.spark.sql.execution.datasources.jdbc

    def _dialect(self) -> Any:
        return _java(self._spark).org.apache.spark.sql.jdbc.JdbcDialects.get(self._options["url"])

    def _scala_options(self) -> Any:
        return _java(self._spark).PythonUtils.toScalaMap(self._options)
