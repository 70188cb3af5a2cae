"""Rules about the sink of a pipeline: the keys that its format needs, and those that it does not use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmqd.config.model.spark import SinkConfig
from rmqd.config.problems import Finding
from rmqd.config.rules.urls import url_problem
from rmqd.errors import InvalidNameError
from rmqd.wire.topics import check_topic

# key: the formats that it is for
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
    "postgresql": {"url": "such as postgresql://db.example/shop", "table": "a table's name"},
    "foreach_batch": {"plugin": "module:attribute of (frame, batch_id) or (frame, batch_id, options)"},
}
NEEDED_OPTIONS: Final = {"url": "such as jdbc:postgresql://db/shop", "dbtable": "a table"}
SCALARS: Final = (str, int, float, bool)


def sink_findings(sink: SinkConfig) -> Iterator[Finding]:
    """Check a sink. Paths of findings begin at the group."""
    plain = SinkConfig(format=sink.format)
    for key, formats in FOR.items():
        if getattr(sink, key) != getattr(plain, key) and sink.format not in formats:
            message = f"of no use with format: {sink.format}; accepted: with format: {' | '.join(formats)}"
            yield Finding(("sink", key), message, at_key=True)
    for key, accepted in NEEDED.get(sink.format, {}).items():
        if not getattr(sink, key):
            yield Finding(("sink", key), f"missing; accepted: {accepted}", missing=True)
    if sink.format == "postgresql" and str(sink.url).startswith("jdbc:"):
        yield Finding(("sink", "url"), "URLs of libpq do not begin with jdbc:; accepted: the same without that")
    if sink.format == "postgresql" and (problem := url_problem(str(sink.url))):
        yield Finding(("sink", "url"), problem)
    if sink.format in ("parquet", "delta") and sink.output_mode != "append" and not _replaces(sink):
        why = "files take no rows back"
        accepted = "append, or update beside keys" if sink.format == "delta" else "append"
        message = f"{sink.output_mode} is not for {sink.format}: {why}; accepted: {accepted}"
        yield Finding(("sink", "output_mode"), message)
    if sink.order_by and not sink.keys:
        yield Finding(("sink", "order_by"), "of no use without keys; accepted: beside keys", at_key=True)
    if sink.delete_column and not (sink.keys and sink.order_by):
        why = "which row goes, and whether it is later than the deletion, would not be known"
        yield Finding(("sink", "delete_column"), f"{why}; accepted: beside keys and order_by", at_key=True)
    for key in ("keys", "order_by"):
        if sink.delete_column and sink.delete_column in getattr(sink, key):
            yield Finding(
                ("sink", "delete_column"), f"{sink.delete_column} is in {key}, too; accepted: a column of its own"
            )
    if sink.format == "postgresql" and sink.output_mode == "complete":
        why = "rows that are no more in the aggregate would stay in the table"
        yield Finding(("sink", "output_mode"), f"complete is not for postgresql: {why}; accepted: append | update")
    if sink.format == "postgresql" and sink.output_mode == "update" and not sink.keys:
        why = "an aggregate's row would be there as often as it changed"
        yield Finding(
            ("sink", "output_mode"), f"update is not for rows that are added: {why}; accepted: keys beside it"
        )
    if sink.format == "jdbc":
        for name, accepted in NEEDED_OPTIONS.items():
            if name not in sink.options:
                message = f"missing; accepted: {accepted}"
                yield Finding(("sink", "options", name), message, missing=True)
        if sink.output_mode == "complete":
            why = "rows are only added to a table"
            yield Finding(("sink", "output_mode"), f"complete is not for jdbc: {why}; accepted: append | update")
    if sink.topic:
        try:
            check_topic(sink.topic)
        except InvalidNameError as error:
            yield Finding(("sink", "topic"), str(error))
    if sink.format != "foreach_batch":
        for name, value in sink.options.items():
            if not isinstance(value, SCALARS):
                yield Finding(
                    ("sink", "options", name), "no such value can be given; accepted: a text, number, true, false"
                )


def _replaces(sink: SinkConfig) -> bool:
    """Whether an aggregate's row takes the place of the one that it was before."""
    return sink.format == "delta" and bool(sink.keys) and sink.output_mode == "update"
