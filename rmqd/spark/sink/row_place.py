"""The message that a pipeline's row was read from. A sink names the message if it rejects the row.

A pipeline keeps the message's place in the column `_place`, which no sink stores, or in columns of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PLACE: Final = "_place"
PLACE_COLUMNS: Final = ("topic", "broker", "queue_id", "queue_offset")
"""The fields of `_place`; also columns of the source."""


def places_of(batch: pa.RecordBatch) -> list[list[Any]]:
    """Return the messages of a batch's rows, by `PLACE_COLUMNS`; None for fields that the pipeline dropped."""
    from pyarrow import types

    found = {name: batch.column(name) for name in PLACE_COLUMNS if name in batch.schema.names}
    if PLACE in batch.schema.names:
        place = batch.column(PLACE)
        found = {field.name: place.field(field.name) for field in place.type}
    kinds = (types.is_string, types.is_string, types.is_integer, types.is_integer)
    return [
        found[name].to_pylist() if name in found and is_kind(found[name].type) else [None] * batch.num_rows
        for name, is_kind in zip(PLACE_COLUMNS, kinds, strict=True)
    ]


def place_text(place: Sequence[Any]) -> str:
    """Return the text that identifies a rejected row in errors, by its message."""
    topic, broker, queue_id, offset = place
    if offset is None:
        return f"a row of an unknown message, because the pipeline's rows have no column {PLACE}"
    at = f" of {broker}" if broker else ""
    return f"the row of topic {topic}, queue {queue_id}{at}, offset {offset}"
