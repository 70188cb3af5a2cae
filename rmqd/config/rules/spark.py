"""Rules about groups with `engine: spark`: what Spark cannot do, and keys that need or exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from rmqd.config.model.group import GroupConfig
from rmqd.config.problems import Finding
from rmqd.config.rules.sinks import sink_findings

PACKAGES: Final = ("pyspark", "pyarrow")
INSTALL: Final = "pip install 'rmqd[spark]'"
_INSTEAD: Final = {
    "spark.master": "spark.master of the group, one level up",
    "spark.app.name": "leave it out; the application is called after the group",
    "spark.sql.streaming.checkpointLocation": "spark.checkpoint of the group, one level up",
}


def spark_findings(group: GroupConfig) -> Iterator[Finding]:
    """Check a group on Spark. Paths of findings begin at the group."""
    yield from _work_findings(group)
    if group.message_model == "broadcasting":
        why = "Spark reads each message once, and not once for each member"
        yield Finding(("message_model",), f"broadcasting has no meaning on Spark: {why}; accepted: clustering")
    if group.consume_mode == "pop":
        why = "pop is not for Spark, which reads ranges of offsets"
        yield Finding(("consume_mode",), f"{why}; accepted: concurrently | orderly")
    if group.consume_mode == "orderly" and group.handler is not None and group.max_reconsume_times < 0:
        why = "a message that fails without end would hold up its micro-batch, and so every queue"
        message = f"no limit, the default of orderly groups, is not for Spark: {why}; accepted: 0 or more"
        is_written = "max_reconsume_times" in group.model_fields_set
        yield Finding(("max_reconsume_times",), message, missing=not is_written)
    if not group.auto_commit:
        why = "the checkpoint has the offsets of whole micro-batches, and a handler cannot hold them back"
        yield Finding(("auto_commit",), f"false is not for Spark: {why}; accepted: true")
    if group.consume_message_batch_max_wait:
        why = "a micro-batch has all the messages that there are, and none to wait for"
        yield Finding(("consume_message_batch_max_wait",), f"of no use with engine: spark: {why}; accepted: 0s")
    if group.circuit_breaker.consecutive or group.circuit_breaker.ratio:
        why = "the tasks of a micro-batch are calls in many processes, and no one of them knows how the others end"
        yield Finding(("circuit_breaker",), f"not for engine: spark: {why}; accepted: leave it out", at_key=True)
    if group.allocate_strategy != "averagely":
        why = "Spark divides the queues among its tasks by itself"
        yield Finding(("allocate_strategy",), f"of no use with engine: spark: {why}; accepted: leave it out")
    if group.handler is not None and group.handler.concurrency == "auto":
        why = "how long calls take is not seen across its worker processes"
        yield Finding(
            ("handler", "concurrency"), f"auto is not for Spark: {why}; accepted: a whole number from 1 to 1000"
        )
    if group.handler is not None and group.handler.processes:
        why = "Spark has worker processes of its own, as many as spark.master says"
        yield Finding(("handler", "processes"), f"of no use with engine: spark: {why}; accepted: 0")
    yield from _property_findings(group)


def _work_findings(group: GroupConfig) -> Iterator[Finding]:
    """Check that the group has a handler, or a pipeline with a sink."""
    if group.handler is None and group.pipeline is None:
        accepted = "handler: a mapping with the keys plugin, options, concurrency; or pipeline and sink"
        yield Finding(("handler",), f"missing; accepted: {accepted}", missing=True, instead=("pipeline",))
    if group.handler is not None and group.pipeline is not None:
        yield Finding(("pipeline",), "set beside handler; accepted: one of the two", at_key=True)
    if group.pipeline is not None and group.sink is None:
        accepted = "a mapping with the key format and what that needs: where the rows of the pipeline go"
        yield Finding(("sink",), f"missing beside pipeline; accepted: {accepted}", missing=True)
    if group.sink is not None and group.pipeline is None:
        yield Finding(("sink",), "of no use without pipeline; accepted: beside one", at_key=True)
    if group.sink is not None:
        yield from sink_findings(group.sink)
    if group.pipeline is not None and group.handler is None:
        yield from _pipeline_findings(group)


def _pipeline_findings(group: GroupConfig) -> Iterator[Finding]:
    if group.consume_mode == "orderly":
        why = "a pipeline has no order but what it makes itself"
        yield Finding(("consume_mode",), f"orderly is of no use with a pipeline: {why}; accepted: concurrently")
    for key in ("retry", "dead_letter", "deduplicate", "hooks"):
        if key in group.model_fields_set:
            yield Finding(
                (key,), "of no use with a pipeline, which calls no handler; accepted: beside handler", at_key=True
            )
    if group.on_corrupt_message == "dead_letter":
        why = "a pipeline sends nothing back, and so has no dead letters"
        yield Finding(("on_corrupt_message",), f"dead_letter is not for pipelines: {why}; accepted: stop | skip")


def _property_findings(group: GroupConfig) -> Iterator[Finding]:
    """Find properties of Spark for which the group has keys of its own, or that would break its guarantees."""
    properties = group.spark.conf if group.spark is not None else {}
    for name, value in properties.items():
        path = ("spark", "conf", name)
        if isinstance(value, dict | list) or value is None:
            yield Finding(path, "text, a number or a flag is a property of Spark; accepted: its whole name as the key")
        elif name in _INSTEAD:
            yield Finding(path, f"not here; accepted: {_INSTEAD[name]}", at_key=True)
        elif name == "spark.speculation" and str(value).lower() != "false":
            yield Finding(path, "a second copy of a task would handle its messages twice; accepted: false")


def missing_findings(name: str, group: GroupConfig) -> Iterator[Finding]:
    """Find packages that a group on Spark needs and that are not installed. Paths begin at the top."""
    if group.engine != "spark":
        return
    if group.sink is not None and group.sink.format == "postgresql" and find_spec("psycopg") is None:
        message = "postgresql needs psycopg, not installed here; accepted: after pip install 'rmqd[postgresql]'"
        yield Finding(("groups", name, "sink", "format"), message)
    absent = [package for package in PACKAGES if find_spec(package) is None]
    if absent:
        message = f"spark needs {' and '.join(absent)}, not installed here; accepted: local, or spark after {INSTALL}"
        yield Finding(("groups", name, "engine"), message)
