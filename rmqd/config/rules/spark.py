"""Rules about groups with `engine: spark`: features that Spark lacks, and keys that require or exclude each other."""

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
    "spark.app.name": "leave it out; the application is named after the group",
    "spark.sql.streaming.checkpointLocation": "spark.checkpoint of the group, one level up",
}


def spark_findings(group: GroupConfig) -> Iterator[Finding]:
    """Check a group on Spark. Paths of findings start at the group."""
    yield from _work_findings(group)
    if group.message_model == "broadcasting":
        why = "Spark reads each message once, not once for each member"
        yield Finding(("message_model",), f"Spark does not support broadcasting: {why}; expected clustering")
    if group.consume_mode == "pop":
        why = "Spark does not support pop, because it reads ranges of offsets"
        yield Finding(("consume_mode",), f"{why}; expected concurrently | orderly")
    if group.consume_mode == "orderly" and group.handler is not None and group.max_reconsume_times < 0:
        why = "a message that always fails would block its micro-batch, and so every queue"
        message = f"Spark does not support unlimited attempts, the default of orderly groups: {why}; expected 0 or more"
        is_written = "max_reconsume_times" in group.model_fields_set
        yield Finding(("max_reconsume_times",), message, missing=not is_written)
    if not group.auto_commit:
        why = "the checkpoint has the offsets of whole micro-batches, which a handler cannot hold back"
        yield Finding(("auto_commit",), f"Spark does not support false: {why}; expected true")
    if group.consume_message_batch_max_wait:
        why = "a micro-batch has all stored messages, and does not wait for more"
        yield Finding(("consume_message_batch_max_wait",), f"has no effect with engine: spark: {why}; expected 0s")
    if group.circuit_breaker.consecutive or group.circuit_breaker.ratio:
        why = "the tasks of a micro-batch call the handler in many processes, which do not know each other's results"
        yield Finding(("circuit_breaker",), f"not possible with engine: spark: {why}; leave it out", at_key=True)
    if group.allocate_strategy != "averagely":
        why = "Spark itself divides the queues among its tasks"
        yield Finding(("allocate_strategy",), f"has no effect with engine: spark: {why}; leave it out")
    if group.handler is not None and group.handler.concurrency == "auto":
        why = "the duration of calls is not measured across its worker processes"
        yield Finding(
            ("handler", "concurrency"), f"Spark does not support auto: {why}; expected a whole number from 1 to 1000"
        )
    if group.handler is not None and group.handler.processes:
        why = "Spark has its own worker processes, as many as spark.master specifies"
        yield Finding(("handler", "processes"), f"has no effect with engine: spark: {why}; expected 0")
    yield from _property_findings(group)


def _work_findings(group: GroupConfig) -> Iterator[Finding]:
    """Check that the group has a handler, or a pipeline with a sink."""
    if group.handler is None and group.pipeline is None:
        accepted = "handler: a mapping with the keys plugin, options, concurrency; or pipeline and sink"
        yield Finding(("handler",), f"missing; expected {accepted}", missing=True, instead=("pipeline",))
    if group.handler is not None and group.pipeline is not None:
        yield Finding(("pipeline",), "set together with handler; remove one of them", at_key=True)
    if group.pipeline is not None and group.sink is None:
        accepted = "a mapping with the key format and its settings, the destination of the pipeline's rows"
        yield Finding(("sink",), f"missing with pipeline; expected {accepted}", missing=True)
    if group.sink is not None and group.pipeline is None:
        yield Finding(("sink",), "has no effect without pipeline; set pipeline too", at_key=True)
    if group.sink is not None:
        yield from sink_findings(group.sink)
    if group.pipeline is not None and group.handler is None:
        yield from _pipeline_findings(group)


def _pipeline_findings(group: GroupConfig) -> Iterator[Finding]:
    if group.consume_mode == "orderly":
        why = "a pipeline has only the order that it creates itself"
        yield Finding(("consume_mode",), f"orderly has no effect with a pipeline: {why}; expected concurrently")
    for key in ("retry", "dead_letter", "deduplicate", "hooks"):
        if key in group.model_fields_set:
            yield Finding(
                (key,), "has no effect with a pipeline, which calls no handler; it needs handler", at_key=True
            )
    if group.on_corrupt_message == "dead_letter":
        why = "a pipeline sends no messages back, and so has no dead letters"
        yield Finding(("on_corrupt_message",), f"pipelines do not support dead_letter: {why}; expected stop | skip")


def _property_findings(group: GroupConfig) -> Iterator[Finding]:
    """Yield Spark properties that the group sets with its own keys, or that would break its guarantees."""
    properties = group.spark.conf if group.spark is not None else {}
    for name, value in properties.items():
        path = ("spark", "conf", name)
        if isinstance(value, dict | list) or value is None:
            yield Finding(path, "a Spark property is a text, a number or a flag; write its whole name as the key")
        elif name in _INSTEAD:
            yield Finding(path, f"not allowed here; use {_INSTEAD[name]}", at_key=True)
        elif name == "spark.speculation" and str(value).lower() != "false":
            yield Finding(path, "a second copy of a task would handle its messages twice; expected false")


def missing_findings(name: str, group: GroupConfig) -> Iterator[Finding]:
    """Yield missing packages of a group on Spark. Paths start at the top."""
    if group.engine != "spark":
        return
    if group.sink is not None and group.sink.format == "postgresql" and find_spec("psycopg") is None:
        message = "postgresql needs psycopg, which is not installed; run pip install 'rmqd[postgresql]'"
        yield Finding(("groups", name, "sink", "format"), message)
    absent = [package for package in PACKAGES if find_spec(package) is None]
    if absent:
        message = f"spark needs {' and '.join(absent)}, which is not installed; use local, or run {INSTALL}"
        yield Finding(("groups", name, "engine"), message)
