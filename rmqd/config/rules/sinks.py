"""Rules about the sink of a pipeline: the keys that its format needs, and those that it does not use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmqd.config.model.spark import SinkConfig
from rmqd.config.problems import Finding
from rmqd.errors import InvalidNameError
from rmqd.wire.topics import check_topic

# key: the formats that it is for
FOR: Final = {
    "topic": ("rocketmq",),
    "path": ("parquet", "delta"),
    "partition_by": ("parquet", "delta"),
    "staging": ("parquet",),
    "batch_column": ("jdbc",),
    "plugin": ("foreach_batch",),
}
NEEDED: Final = {
    "parquet": ("path", "a folder or URL"),
    "delta": ("path", "a folder or URL"),
    "foreach_batch": ("plugin", "module:attribute of (frame, batch_id) or (frame, batch_id, options)"),
}
NEEDED_OPTIONS: Final = {"url": "such as jdbc:postgresql://db/shop", "dbtable": "a table"}
SCALARS: Final = (str, int, float, bool)


def sink_findings(sink: SinkConfig) -> Iterator[Finding]:
    """Check a sink. Paths of findings begin at the group."""
    for key, formats in FOR.items():
        if getattr(sink, key) and sink.format not in formats:
            message = f"of no use with format: {sink.format}; accepted: with format: {' | '.join(formats)}"
            yield Finding(("sink", key), message, at_key=True)
    if needed := NEEDED.get(sink.format):
        key, accepted = needed
        if not getattr(sink, key):
            yield Finding(("sink", key), f"missing; accepted: {accepted}", missing=True)
    if sink.format in ("parquet", "delta") and sink.output_mode != "append":
        why = "files take no rows back"
        yield Finding(("sink", "output_mode"), f"{sink.output_mode} is not for {sink.format}: {why}; accepted: append")
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
                    ("sink", "options", name), "Spark takes no such value; accepted: a text, number, true, false"
                )
