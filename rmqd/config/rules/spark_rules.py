"""Rules about groups with `engine: spark` and their sinks: features that Spark lacks, keys without effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Final

from rmqd.config.model.forms import ConfigSection
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.spark_model import SinkConfig
from rmqd.config.problems import ConfigFinding, KeyPath
from rmqd.consumer.consumer_options import MAX_CONCURRENCY
from rmqd.errors import InvalidNameError, install_command
from rmqd.runtime.value_kinds import key_of_field
from rmqd.wire.topics import check_topic

_URI: Final = re.compile("postgres(?:ql)?://([^/?#]*)")


def url_problem(url: str) -> str | None:
    """Return an error text, without the URL, if a PostgreSQL URL has more than one @ before the host; otherwise None.

    libpq reads the first @ as the end of the password, and the rest as the host. Texts such as `host=db password=a@b`
    and JDBC's URLs are not URLs of libpq, and may contain an @.
    """
    uri = _URI.match(url)
    if uri is None or uri[1].count("@") <= 1:
        return None
    return "more than one @ before the host; expected %40 for an @ in the user or the password"


# The sink formats that support each key of a sink.
SINK_FORMATS: Final = {
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
NEEDED_KEYS: Final = {
    "parquet": {"path": "a folder or URL"},
    "delta": {"path": "a folder or URL"},
    "postgresql": {"url": "a URL such as postgresql://db.example/shop", "table": "a table's name"},
    "foreach_batch": {"plugin": "module:attribute of (frame, batch_id) or (frame, batch_id, options)"},
}
NEEDED_OPTIONS: Final = {"url": "a URL such as jdbc:postgresql://db/shop", "dbtable": "a table"}
SCALARS: Final = (str, int, float, bool)
_NEVER_COMPLETE: Final = {
    "postgresql": "rows that the aggregate no longer contains would stay in the table",
    "jdbc": "rows are only added to a table",
}


def sink_findings(sink: SinkConfig) -> Iterator[ConfigFinding]:
    """Check a sink. The paths of the findings are relative to the group."""
    plain = SinkConfig(format=sink.format)
    for key, formats in SINK_FORMATS.items():
        if getattr(sink, key) != getattr(plain, key) and sink.format not in formats:
            message = f"has no effect with format: {sink.format}; it needs format: {' | '.join(formats)}"
            yield ConfigFinding(("sink", key), message, at_key=True)
    for key, accepted in NEEDED_KEYS.get(sink.format, {}).items():
        if not getattr(sink, key):
            yield ConfigFinding(("sink", key), f"missing; expected {accepted}", missing=True)
    if sink.format == "postgresql" and str(sink.url).startswith("jdbc:"):
        yield ConfigFinding(("sink", "url"), "libpq's URLs do not start with jdbc:; remove this prefix")
    if sink.format == "postgresql" and (problem := url_problem(str(sink.url))):
        yield ConfigFinding(("sink", "url"), problem)
    replaces_rows = sink.format == "delta" and bool(sink.keys) and sink.output_mode == "update"
    if sink.format in ("parquet", "delta") and sink.output_mode != "append" and not replaces_rows:
        why = "rows in files cannot be replaced"
        accepted = "append, or update with keys" if sink.format == "delta" else "append"
        message = f"{sink.output_mode} is not possible with {sink.format}: {why}; expected {accepted}"
        yield ConfigFinding(("sink", "output_mode"), message)
    if sink.order_by and not sink.keys:
        yield ConfigFinding(("sink", "order_by"), "has no effect without keys; set keys too", at_key=True)
    if sink.delete_column and not (sink.keys and sink.order_by):
        why = "without keys and order_by, the row to delete is unknown"
        yield ConfigFinding(("sink", "delete_column"), f"{why}; set both", at_key=True)
    for key in ("keys", "order_by"):
        if sink.delete_column and sink.delete_column in getattr(sink, key):
            yield ConfigFinding(
                ("sink", "delete_column"), f"{sink.delete_column} is also in {key}; expected another column"
            )
    if sink.output_mode == "complete" and sink.format in _NEVER_COMPLETE:
        message = f"complete is not possible with {sink.format}: {_NEVER_COMPLETE[sink.format]}"
        yield ConfigFinding(("sink", "output_mode"), f"{message}; expected append | update")
    if sink.format == "postgresql" and sink.output_mode == "update" and not sink.keys:
        why = "an aggregate's row would be added at every change"
        yield ConfigFinding(("sink", "output_mode"), f"update is not possible without keys: {why}; set keys")
    if sink.format == "jdbc":
        for name, accepted in NEEDED_OPTIONS.items():
            if name not in sink.options:
                yield ConfigFinding(("sink", "options", name), f"missing; expected {accepted}", missing=True)
    if sink.topic:
        try:
            check_topic(sink.topic)
        except InvalidNameError as error:
            yield ConfigFinding(("sink", "topic"), str(error))
    if sink.format != "foreach_batch":
        for name, value in sink.options.items():
            if not isinstance(value, SCALARS):
                yield ConfigFinding(
                    ("sink", "options", name), "this value is not possible; expected a text, number, true or false"
                )


SPARK_PACKAGES: Final = ("pyspark", "pyarrow")
_INSTEAD: Final = {
    "spark.master": "spark.master of the group, one level up",
    "spark.app.name": "the name of the group, which the application always gets",
    "spark.sql.streaming.checkpointLocation": "spark.checkpoint of the group, one level up",
}


def spark_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    """Check a group on Spark. The paths of the findings are relative to the group."""
    yield from _work_findings(group)
    if group.message_model == "broadcasting":
        why = "Spark reads each message once, not once for each member"
        yield ConfigFinding(("message_model",), f"Spark does not support broadcasting: {why}; expected clustering")
    if group.consume_mode == "pop":
        why = "Spark does not support pop, because it reads ranges of offsets"
        yield ConfigFinding(("consume_mode",), f"{why}; expected concurrently | orderly")
    if group.consume_mode == "orderly" and group.handler is not None and group.max_reconsume_times < 0:
        why = "a message that always fails would block its micro-batch, and so every queue"
        message = f"Spark does not support unlimited attempts, the default of orderly groups: {why}; expected 0 or more"
        is_written = "max_reconsume_times" in group.model_fields_set
        yield ConfigFinding(("max_reconsume_times",), message, missing=not is_written)
    if not group.auto_commit:
        why = "the checkpoint has the offsets of whole micro-batches, which a handler cannot hold back"
        yield ConfigFinding(("auto_commit",), f"Spark does not support false: {why}; expected true")
    if group.consume_message_batch_max_wait_seconds:
        why = "a micro-batch has all stored messages, and does not wait for more"
        yield ConfigFinding(("consume_message_batch_max_wait",), f"not possible with engine: spark: {why}; expected 0s")
    if group.circuit_breaker.consecutive or group.circuit_breaker.ratio:
        why = "the tasks of a micro-batch call the handler in many processes, which do not know each other's results"
        yield ConfigFinding(("circuit_breaker",), f"not possible with engine: spark: {why}; remove it", at_key=True)
    yield from _findings_without_effect(group, (), _LOCAL_KEYS, "engine: spark")
    if group.handler is not None:
        yield from _findings_without_effect(group.handler, ("handler",), _HANDLER_KEYS, "engine: spark")
    if group.handler is not None and group.handler.concurrency == "auto":
        why = "the duration of calls is not measured across its worker processes"
        yield ConfigFinding(
            ("handler", "concurrency"),
            f"Spark does not support auto: {why}; expected a whole number from 1 to {MAX_CONCURRENCY}",
        )
    if group.handler is not None and group.handler.canary is not None:
        yield ConfigFinding(
            ("handler", "canary"), "not possible with engine: spark; expected engine: local", at_key=True
        )
    if group.handler is not None and group.handler.processes:
        why = "Spark has its own worker processes, as many as spark.master specifies"
        yield ConfigFinding(("handler", "processes"), f"not possible with engine: spark: {why}; expected 0")
    yield from _property_findings(group)


# Keys without effect, by the reason. Several keys are separated by spaces.
_LOCAL_KEYS: Final = {
    "allocate_strategy allocate_queues machine_rooms": "Spark itself divides the queues among its tasks"
}
_HANDLER_KEYS: Final = {
    "max_concurrency": "Spark does not support concurrency: auto",
    "process_memory": "Spark does not support processes",
}
_PIPELINE_KEYS: Final = {
    "retry dead_letter deduplicate hooks consume_timeout consume_message_batch_max_size max_reconsume_times "
    "delay_level_when_next_consume suspend_current_queue_time enable_trace trace_topic trace_msg_batch_num": (
        "it calls no handler"
    ),
    "pull_interval pull_rate_limit": "spark.trigger and spark.max_offsets_per_trigger limit its rate",
    "pull_threshold_for_queue pull_threshold_size_for_queue pull_threshold_for_topic pull_threshold_size_for_topic "
    "consume_concurrently_max_span": "it has no process queue",
    "max_body_size": "its limit is always 16MiB",
}


def _findings_without_effect(
    section: ConfigSection, at: KeyPath, reasons: Mapping[str, str], owner: str
) -> Iterator[ConfigFinding]:
    """Yield a finding for each key of `reasons` that `section`, whose path is `at`, sets.

    The default value of a key is accepted, so that a file that names it runs on both engines.
    """
    fields = type(section).model_fields
    defaults = {name: fields[name].get_default(call_default_factory=True) for name in section.model_fields_set}
    changed = {key_of_field(name) for name, value in defaults.items() if getattr(section, name) != value}
    for keys, why in reasons.items():
        for key in keys.split():
            if key in changed:
                message = f"has no effect with {owner}: {why}; remove this key"
                yield ConfigFinding((*at, key), message, at_key=True, may_be_inherited=True)


def _work_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    """Check that the group has a handler, or a pipeline with a sink."""
    if group.handler is None and group.pipeline is None:
        accepted = "handler: a mapping with the keys plugin, options, concurrency; or pipeline and sink"
        yield ConfigFinding(("handler",), f"missing; expected {accepted}", missing=True, instead=("pipeline",))
    if group.handler is not None and group.pipeline is not None:
        yield ConfigFinding(("pipeline",), "set together with handler; remove one of them", at_key=True)
    if group.pipeline is not None and group.sink is None:
        accepted = "a mapping with the key format and its settings, the destination of the pipeline's rows"
        yield ConfigFinding(("sink",), f"required by pipeline; expected {accepted}", missing=True)
    if group.sink is not None and group.pipeline is None:
        yield ConfigFinding(("sink",), "has no effect without pipeline; set pipeline too", at_key=True)
    if group.sink is not None:
        yield from sink_findings(group.sink)
    if group.pipeline is not None and group.handler is None:
        yield from _pipeline_findings(group)


def _pipeline_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    if group.consume_mode == "orderly":
        why = "a pipeline has only the order that it creates itself"
        message = f"orderly has no effect with a pipeline: {why}; expected concurrently"
        yield ConfigFinding(("consume_mode",), message, may_be_inherited=True)
    yield from _findings_without_effect(group, (), _PIPELINE_KEYS, "a pipeline")
    if group.on_corrupt_message == "dead_letter":
        why = "a pipeline sends no messages back, and so has no dead letters"
        yield ConfigFinding(
            ("on_corrupt_message",), f"pipelines do not support dead_letter: {why}; expected stop | skip"
        )


def _property_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    """Yield a finding for each Spark property that rmqd sets, that has a wrong type, or that would break guarantees."""
    properties = group.spark.conf if group.spark is not None else {}
    for name, value in properties.items():
        path = ("spark", "conf", name)
        if isinstance(value, dict | list) or value is None:
            yield ConfigFinding(path, "not a text, number or flag; write the property's whole name as one key")
        elif name in _INSTEAD:
            yield ConfigFinding(path, f"not allowed here; use {_INSTEAD[name]}", at_key=True)
        elif name == "spark.speculation" and str(value).lower() != "false":
            yield ConfigFinding(path, "a second copy of a task would handle its messages twice; expected false")


def missing_package_findings(name: str, group: GroupConfig) -> Iterator[ConfigFinding]:
    """Yield findings, with whole paths, if a group on Spark needs Python packages that are not installed."""
    if group.engine != "spark":
        return
    if group.sink is not None and group.sink.format == "postgresql" and find_spec("psycopg") is None:
        message = f"postgresql needs psycopg, which is not installed; run {install_command('postgresql')}"
        yield ConfigFinding(("groups", name, "sink", "format"), message)
    absent = [package for package in SPARK_PACKAGES if find_spec(package) is None]
    if absent:
        which, cure = "which are" if len(absent) > 1 else "which is", install_command("spark")
        message = f"spark needs {' and '.join(absent)}, {which} not installed; use local, or run {cure}"
        yield ConfigFinding(("groups", name, "engine"), message)
