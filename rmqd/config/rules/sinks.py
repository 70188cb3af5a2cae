"""Rules about the sink of a pipeline: keys that its format needs, and keys that have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmqd.config.model.spark import SinkConfig
from rmqd.config.problems import Finding
from rmqd.config.rules.urls import url_problem
from rmqd.errors import InvalidNameError
from rmqd.wire.topics import check_topic

# each key with its formats
FOR: Final = {
    "topic": ("rocketmq",),
    "path": ("parquet", "delta"),
    "partition_by": ("parquet", "delta"),
    "staging": ("parquet",),
    "url": ("postgresql",),
    "table": ("postgresql",),
    "keys": ("postgresql", "delta"),
    "order_by": ("postgresql", "delta"),
    "delete_column": ("postgresql",),
    "bad_rows": ("postgresql", "rocketmq"),
    "batch_column": ("jdbc",),
    "plugin": ("foreach_batch",),
}
NEEDED: Final = {
    "parquet": {"path": "a folder or URL"},
    "delta": {"path": "a folder or URL"},
    "postgresql": {"url": "a URL such as postgresql://db.example/shop", "table": "a table's name"},
    "foreach_batch": {"plugin": "module:attribute of (frame, batch_id) or (frame, batch_id, options)"},
}
NEEDED_OPTIONS: Final = {"url": "a URL such as jdbc:postgresql://db/shop", "dbtable": "a table"}
SCALARS: Final = (str, int, float, bool)


def sink_findings(sink: SinkConfig) -> Iterator[Finding]:
    """Check a sink. Paths of findings start at the group."""
    plain = SinkConfig(format=sink.format)
    for key, formats in FOR.items():
        if getattr(sink, key) != getattr(plain, key) and sink.format not in formats:
            message = f"has no effect with format: {sink.format}; it needs format: {' | '.join(formats)}"
            yield Finding(("sink", key), message, at_key=True)
    for key, accepted in NEEDED.get(sink.format, {}).items():
        if not getattr(sink, key):
            yield Finding(("sink", key), f"missing; expected {accepted}", missing=True)
    if sink.format == "postgresql" and str(sink.url).startswith("jdbc:"):
        yield Finding(("sink", "url"), "libpq's URLs do not start with jdbc:; remove this prefix")
    if sink.format == "postgresql" and (problem := url_problem(str(sink.url))):
        yield Finding(("sink", "url"), problem)
    if sink.format in ("parquet", "delta") and sink.output_mode != "append" and not _replaces(sink):
        why = "rows in files cannot be replaced"
        accepted = "append, or update with keys" if sink.format == "delta" else "append"
        message = f"{sink.output_mode} is not possible with {sink.format}: {why}; expected {accepted}"
        yield Finding(("sink", "output_mode"), message)
    if sink.order_by and not sink.keys:
        yield Finding(("sink", "order_by"), "has no effect without keys; set keys too", at_key=True)
    if sink.delete_column and not (sink.keys and sink.order_by):
        why = "without keys and order_by, the row to delete is unknown"
        yield Finding(("sink", "delete_column"), f"{why}; set both", at_key=True)
    for key in ("keys", "order_by"):
        if sink.delete_column and sink.delete_column in getattr(sink, key):
            yield Finding(("sink", "delete_column"), f"{sink.delete_column} is also in {key}; expected another column")
    if sink.format == "postgresql" and sink.output_mode == "complete":
        why = "rows that the aggregate no longer contains would stay in the table"
        yield Finding(
            ("sink", "output_mode"), f"complete is not possible with postgresql: {why}; expected append | update"
        )
    if sink.format == "postgresql" and sink.output_mode == "update" and not sink.keys:
        why = "an aggregate's row would be added at every change"
        yield Finding(("sink", "output_mode"), f"update is not possible without keys: {why}; set keys")
    if sink.format == "jdbc":
        for name, accepted in NEEDED_OPTIONS.items():
            if name not in sink.options:
                message = f"missing; expected {accepted}"
                yield Finding(("sink", "options", name), message, missing=True)
        if sink.output_mode == "complete":
            why = "rows are only added to a table"
            yield Finding(
                ("sink", "output_mode"), f"complete is not possible with jdbc: {why}; expected append | update"
            )
    if sink.topic:
        try:
            check_topic(sink.topic)
        except InvalidNameError as error:
            yield Finding(("sink", "topic"), str(error))
    if sink.format != "foreach_batch":
        for name, value in sink.options.items():
            if not isinstance(value, SCALARS):
                yield Finding(
                    ("sink", "options", name), "this value is not possible; expected a text, number, true or false"
                )


def _replaces(sink: SinkConfig) -> bool:
    """Return whether an aggregate's row replaces its previous version."""
    return sink.format == "delta" and bool(sink.keys) and sink.output_mode == "update"
