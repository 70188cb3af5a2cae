"""The sink `jdbc`: rows of a table, at least once, or exactly once if a column names the batch of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.pipelines.micro_batch import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class JdbcTable:
    """One table. `spark.conf` must give the driver's JVM the JDBC driver of the database."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], batch_column: str) -> None:
        self._spark = spark
        self._options = dict(options)
        self._column = batch_column
        self._may_be_repeated = True

    def prepare(self, schema: StructType) -> None:
        """Raises RmqdError if the database is unreachable."""
        if self._column in schema.fieldNames():
            raise ConfigError([f"sink.batch_column: the pipeline's rows already have a column {self._column}"])
        self._ask(lambda connection: None)

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Insert a batch's rows, after deleting rows that an earlier attempt inserted."""
        from pyspark.sql.functions import lit

        if self._column:
            name = f"{batch.query}/{batch.number}"
            if self._may_be_repeated:  # only the first batch of a query may already have rows in the table
                self._ask(lambda connection: self._forget(connection, name))
            frame = frame.withColumn(self._column, lit(name))
        frame.write.format("jdbc").options(**self._options, **self._types()).mode("append").save()
        self._may_be_repeated = False

    def _types(self) -> dict[str, str]:
        """Return a comparable type for the batch's column, in case Spark creates the table."""
        if not self._column or "createTableColumnTypes" in self._options:
            return {}
        return {"createTableColumnTypes": f"`{self._column}` VARCHAR(64)"}

    def _forget(self, connection: Any, name: str) -> None:
        if not self._jdbc.JdbcUtils.tableExists(connection, self._jdbc.JdbcOptionsInWrite(self._scala_options())):
            return  # Spark creates it with the first rows
        statement = connection.prepareStatement(
            f"DELETE FROM {self._options['dbtable']} WHERE {self._dialect().quoteIdentifier(self._column)} = ?"
        )
        try:
            statement.setString(1, name)
            statement.executeUpdate()
        finally:
            statement.close()

    def _ask(self, work: Any) -> None:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors.exceptions.captured import CapturedException

        try:
            options = self._jdbc.JDBCOptions(self._scala_options())
            connection = self._dialect().createConnectionFactory(options).apply(-1)
            try:
                work(connection)
            finally:
                connection.close()
        except Py4JJavaError as error:
            raise RmqdError(f"sink {self._where()}: {error.java_exception.toString()}") from error
        except CapturedException as error:
            raise RmqdError(f"sink {self._where()}: {error.getMessage()}") from error

    def _where(self) -> str:
        """Return the table without the part of the URL that may contain a password."""
        return f"{self._options['dbtable']} of {self._options['url'].partition('?')[0].partition(';')[0]}"

    @property
    def _jdbc(self) -> Any:
        java = self._spark.sparkContext._jvm
        assert java is not None
        return java.org.apache.spark.sql.execution.datasources.jdbc

    def _dialect(self) -> Any:
        java = self._spark.sparkContext._jvm
        assert java is not None
        return java.org.apache.spark.sql.jdbc.JdbcDialects.get(self._options["url"])

    def _scala_options(self) -> Any:
        java = self._spark.sparkContext._jvm
        assert java is not None
        return java.PythonUtils.toScalaMap(self._options)
