"""The columns `value` and `_bad_row` of a batch, decoded from its bodies on executors."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.spark.values.kinds import Kind
from rmqd.spark.values.schema_registry import RegistryAwayError
from rmqd.spark.values.value_format import BAD_ROW, VALUE, ValueFormat

BODY: Final = "body"
NO_BODY: Final = "the message is corrupt, and has no body"
_MOST_CHARACTERS: Final = 300  # maximum length of a reason


class ValueColumns:
    """Converts batches of the source's own columns to batches with the columns of a read."""

    def __init__(self, value: ValueFormat, columns: Sequence[str], used: frozenset[str] | None = None) -> None:
        """Columns that are not in `used` may be null; None means that all are used."""
        self._columns = tuple(columns)
        self._is_decoded = used is None or not used.isdisjoint((VALUE, BAD_ROW))
        self.used = used if used is None or not self._is_decoded else used | {BODY}
        """The columns that the source must decode."""
        self._decode = value.decoder()
        self._types = value_types(value)

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns that the source must read."""
        stored = [name for name in self._columns if name not in (VALUE, BAD_ROW)]
        return tuple(stored if BODY in stored else [*stored, BODY])

    def over(self, read: Generator[pa.RecordBatch, None, int]) -> Generator[pa.RecordBatch, None, int]:
        """Yield all batches of a read, and return its result."""
        while True:
            try:
                batch = next(read)
            except StopIteration as end:
                return int(end.value)
            yield self.of(batch)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of the read, in order."""
        values: list[Any] = [None] * len(batch)
        reasons: list[str | None] = [None] * len(batch)
        if self._is_decoded:
            for place, body in enumerate(batch.column(BODY).to_pylist()):
                values[place], reasons[place] = self._decoded(body)
        made = {VALUE: self._values(values, reasons), BAD_ROW: pa.array(reasons, pa.string())}
        return pa.RecordBatch.from_arrays(
            [made[name] if name in made else batch.column(name) for name in self._columns], names=list(self._columns)
        )

    def _values(self, values: list[Any], reasons: list[str | None]) -> pa.Array:
        """Return the column. Values that Arrow cannot store, such as half a surrogate pair, become null."""
        kind = self._types[VALUE]
        try:
            return pa.array(values, kind)
        except Exception:  # noqa: BLE001  conversions raise many kinds; at least one row is bad, and found below
            for place, value in enumerate(values):
                try:
                    pa.array([value], kind)
                except Exception as error:  # noqa: BLE001
                    values[place], reasons[place] = None, _reason(error)
        return pa.array(values, kind)

    def _decoded(self, body: bytes | None) -> tuple[Any, str | None]:
        if body is None:
            return None, NO_BODY
        try:
            return self._decode(body), None
        except RegistryAwayError:  # the body may be good: the task fails, and is retried
            raise
        except Exception as error:  # noqa: BLE001  decoders raise many kinds
            return None, _reason(error)


def _reason(error: Exception) -> str:
    text = (str(error) or type(error).__name__)[:_MOST_CHARACTERS]
    return text.encode(errors="backslashreplace").decode()  # it may quote text that a column cannot store


def value_types(value: ValueFormat) -> dict[str, pa.DataType]:
    """Return the Arrow types that Spark expects for the two columns."""
    from pyspark.sql.pandas.types import to_arrow_type

    assert value.kind is not None
    return {VALUE: to_arrow_type(_spark_type(value.kind), timezone="UTC"), BAD_ROW: pa.string()}


def _spark_type(kind: Kind) -> Any:
    from pyspark.sql import types

    if kind.name == "struct":
        return types.StructType([types.StructField(name, _spark_type(inner)) for name, inner in kind.fields])
    if kind.name == "array":
        return types.ArrayType(_spark_type(kind.fields[0][1]))
    if kind.name == "map":
        return types.MapType(types.StringType(), _spark_type(kind.fields[0][1]))
    if kind.name == "decimal":
        return types.DecimalType(kind.precision, kind.scale)
    return _SPARK_TYPES[kind.name]()


def _spark_types() -> dict[str, Any]:
    from pyspark.sql import types

    found = [
        types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType, types.FloatType,
        types.DoubleType, types.StringType, types.BinaryType, types.DateType, types.TimestampType,
        types.TimestampNTZType,
    ]  # fmt: skip
    return {kind().simpleString(): kind for kind in found}


_SPARK_TYPES: Final = _spark_types()
