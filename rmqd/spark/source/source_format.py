"""Bounded reads that skip what SQL conditions rule out (option `pushdown`): queues, offsets, times and tags.

Spark rejects every read through such a reader while spark.sql.python.filterPushdown.enabled is false, the default. So
it is used only on request.

The format `rocketmq`: the data source behind `spark.read.format("rocketmq")` and `spark.readStream`.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from rmqd.errors import ConfigError
from rmqd.spark.session.spark_process import reason_first
from rmqd.spark.source.range_fetch import RocketMQBatchReader
from rmqd.spark.source.range_slices import Narrowing
from rmqd.spark.source.source_columns import ddl, names_of_schema
from rmqd.spark.source.source_options import SourceOptions, parse_options
from rmqd.spark.values.schema_registry import RegistryAwayError
from rmqd.spark.values.value_format import BAD_ROW, VALUE, ValueFormat

if TYPE_CHECKING:
    from rmqd.spark.source.stream_reader import RocketMQStreamReader


_EQUAL: Final = (EqualTo, EqualNullSafe)
_LOWER_BOUND: Final = (GreaterThan, GreaterThanOrEqual)
_UPPER_BOUND: Final = (LessThan, LessThanOrEqual)


class PushdownBatchReader(RocketMQBatchReader):
    """Receives the conditions of a read before Spark asks for partitions."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Derive what can be skipped. Return all conditions, so that Spark applies them to the result."""
        self.narrowing = narrowed(filters)
        return filters


def narrowed(filters: Iterable[Filter]) -> Narrowing:
    """Return what can be skipped if all conditions hold. Conditions on a field of a column are ignored."""
    found = Narrowing()
    for condition in filters:
        if isinstance(condition, (*_EQUAL, In, *_LOWER_BOUND, *_UPPER_BOUND)) and len(condition.attribute) == 1:
            (column,), value = condition.attribute, condition.value
            if isinstance(condition, In):
                found = found.one_of(column, condition.value)
            elif isinstance(condition, _EQUAL):
                found = found.one_of(column, [value]).at_least(column, value).at_most(column, value)
            elif isinstance(condition, _LOWER_BOUND):
                found = found.at_least(column, value)
            else:
                found = found.at_most(column, value)
    return found


class RocketMQSource(DataSource):
    """Contains only options, because Spark pickles it and creates it again in several processes.

    It also keeps the answer of a schema registry at `load()`, so that later readers have the same columns.
    """

    _pinned: ValueFormat | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "rocketmq"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def schema(self) -> str:
        """Return the columns; called by `load()`. Raises ConfigError with all problems of the options."""
        with reason_first():
            options = self._parsed()
            return ddl(options.columns, options.value)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`, a bounded read."""
        from rmqd.spark.source.range_fetch import RocketMQBatchReader

        options = self._parsed_for(schema)
        if options.pushdown:
            return PushdownBatchReader(options)
        return RocketMQBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for `spark.readStream`, a streaming query."""
        return self.stream_reader(schema)

    def stream_reader(self, schema: StructType | None = None) -> RocketMQStreamReader:
        """Return a stream reader. It opens no connection until it is used."""
        from rmqd.spark.source.stream_reader import RocketMQStreamReader

        options = self._parsed_for(schema)
        with reason_first():
            options.refuse_batch_only()
        return RocketMQStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer for `df.write`, for a batch of rows."""
        from rmqd.spark.sink.sink_writer import RocketMQWriter, make_options

        with reason_first():
            return RocketMQWriter(make_options(dict(self.options.items()), schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer for `df.writeStream`. In output mode complete (`overwrite`), each batch is sent in full."""
        from rmqd.spark.sink.sink_writer import RocketMQStreamWriter, make_options

        with reason_first():
            return RocketMQStreamWriter(make_options(dict(self.options.items()), schema, overwrite=False))

    def _parsed(self) -> SourceOptions:
        options = parse_options(dict(self.options.items()))
        if options.value is None or options.value.registry is None:
            return options
        if self._pinned is None:
            topics = options.topics or tuple(sorted({queue.topic for queue in options.assigned}))
            try:
                self._pinned = options.value.of_topics(topics).pinned(options.tolerance_seconds)
            except RegistryAwayError as error:
                raise ConfigError([f"valueRegistry: {error}"]) from None
        return replace(options, value=self._pinned)

    def _parsed_for(self, schema: StructType | None) -> SourceOptions:
        """Return the options, with the columns of a reader's own schema, if given, instead of `columns`."""
        with reason_first():
            options = self._parsed()
            if schema is None or not schema.fields:
                return options
            fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
            names = names_of_schema(fields, options.value)
            if options.value is not None and VALUE in names:
                options = replace(options, value=options.value.with_kind(dict(fields)[VALUE]))
            if VALUE in names or BAD_ROW in names:
                ddl(names, options.value)  # raises if the type of bodies is unknown
            if names != options.columns and "columns" in options.given:
                raise ConfigError(["columns: schema() already sets the columns; use only one of them"])
            return replace(options, columns=names)
