"""The source columns that a pipeline uses, and the inferred schema of message bodies with `valueSchema: infer`.

Executors decode the used columns; all other columns are null. Spark does not report the used columns to a Python
source, and creates the source before the pipeline is known. So the driver reads the used columns from the plan of
Spark's optimizer, and writes them to a file next to the pause file. The source reads this file when the query starts.

A schema is inferred once from sampled messages, and stored next to the group's checkpoints. So the group has the same
columns after each restart and reset, on any machine. A body that does not fit the schema counts as corrupt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from rmqd.errors import RmqdError
from rmqd.spark.session.queue_queries import retry_until_timeout
from rmqd.spark.session.spark_cluster import cluster_of, values_or_raise
from rmqd.spark.source.group_offsets import SubscribedQueues
from rmqd.spark.source.range_fetch import ranges_of, read_ranges
from rmqd.spark.source.source_columns import DecodingOptions
from rmqd.spark.source.source_options import SCHEMA_OPTION, has_inferred_schema
from rmqd.spark.values.column_kinds import parse_schema
from rmqd.spark.values.fitting import TooManyFieldsError, infer_json_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rmqd.spark.session.group_spec import GroupSpec
    from rmqd.spark.session.hadoop_folder import HadoopFolder
    from rmqd.spark.source.source_options import SourceOptions
    from rmqd.wire.message_queue import MessageQueue


log = structlog.get_logger(__name__)

_SUFFIX: Final = ".columns"
_CHOOSES: Final = ("Project", "Aggregate")  # plan nodes that select columns: only columns that they name are used
_PASSES: Final = ("Filter",)  # plan nodes that pass all columns on


def used_columns(frame: DataFrame, source: str) -> frozenset[str] | None:
    """Return the columns that a frame uses of the source with the format name `source`; None if unknown."""
    found: frozenset[str] = frozenset()
    try:
        session = frame.sparkSession._jsparkSession  # exists only in Spark Classic, which the driver uses
        plan = session.sessionState().optimizer().execute(frame._jdf.queryExecution().analyzed())
        for names in _uses(plan, source, None):
            if names is None:
                return None
            found |= names
    except (Py4JError, PySparkException) as error:  # the methods called above are not public in Spark
        log.warning("spark.all_columns_read", error=str(error).partition("\n")[0])
        return None
    return found


def store_used_columns(pause_file: str, names: frozenset[str] | None) -> None:
    """Store the column names in a file next to `pause_file`; None stands for all columns. Raises OSError."""
    path = Path(pause_file + _SUFFIX)
    if names is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps(sorted(names)))


def read_used_columns(pause_file: str) -> frozenset[str] | None:
    """Return the column names that `store_used_columns` stored; None for all columns."""
    with suppress(OSError):
        return frozenset(json.loads(Path(pause_file + _SUFFIX).read_text()))
    return None


def _uses(plan: Any, source: str, wanted: frozenset[str] | None) -> Iterator[frozenset[str] | None]:
    """Yield the used columns for each read of the source in a plan; None if a read may use all columns.

    `wanted` are the columns that the nodes above `plan` name, up to the nearest node that selects columns; None if no
    node selects columns. The optimizer puts a selecting node above a source, with at most filters between the two.
    """
    kind = plan.nodeName()
    if kind == "StreamingRelationV2" and plan.sourceName() == source:
        yield None if wanted is None else wanted & _names(plan.outputSet())
        return
    if kind in _CHOOSES:
        wanted = _names(plan.references())
    elif kind in _PASSES and wanted is not None:
        wanted |= _names(plan.references())
    else:
        wanted = None
    children = plan.children()
    for place in range(children.size()):
        yield from _uses(children.apply(place), source, wanted)


def _names(attributes: Any) -> frozenset[str]:
    listed = attributes.toSeq()
    return frozenset(listed.apply(place).name() for place in range(listed.size()))


SCHEMA_FILE: Final = "value_schema.json"
MAX_SAMPLE_MESSAGES: Final = 10_000
"""The size of the sample: the next messages that the group will read; if there are none, the last messages before."""

MAX_SAMPLE_BYTES: Final = 64 << 20
"""The approximate limit for the total size of the sampled bodies, in bytes."""


def with_pinned_schema(
    spec: GroupSpec, options: SourceOptions, starting: Mapping[MessageQueue, int] | None, folder: HadoopFolder
) -> GroupSpec:
    """Replace `valueSchema: infer` in a group's specification by the inferred schema of the message bodies.

    The schema is inferred once, and then stored in `folder`. `starting` are the start offsets of the query, or None if
    unknown. Raises RmqdError if no schema can be inferred.
    """
    spark = spec.spark
    if not has_inferred_schema({name: str(value) for name, value in spark.options.items()}):
        return spec
    name = next(name for name in spark.options if name.lower() == SCHEMA_OPTION.lower())  # Spark ignores the case
    schema = _kept(folder) or _inferred(spec.name, options, starting, folder)
    spark = spark.model_copy(update={"options": {**spark.options, name: schema}})
    settings = spec.settings.model_copy(update={"spark": spark})
    return replace(spec, config=spec.config.of_group(spec.name, settings))


def _kept(folder: HadoopFolder) -> str:
    """Return the schema in SCHEMA_FILE; empty if the file is missing. Raises RmqdError if the file is invalid."""
    if not folder.exists(SCHEMA_FILE):
        return ""
    try:
        schema = str(json.loads(folder.read(SCHEMA_FILE))["schema"])
        parse_schema(schema)
    except (ValueError, KeyError, TypeError) as error:
        raise RmqdError(
            f"{folder.url}/{SCHEMA_FILE} does not contain the schema of bodies: {error}; "
            f"delete the file to infer it again, or write the schema in {SCHEMA_OPTION}"
        ) from error
    return schema


def _inferred(
    group: str, options: SourceOptions, starting: Mapping[MessageQueue, int] | None, folder: HadoopFolder
) -> str:
    bodies = retry_until_timeout(lambda: _first_bodies(options, starting or {}), options.tolerance_seconds)
    try:
        kind, told = infer_json_kind(bodies)
    except TooManyFieldsError as error:
        raise RmqdError(
            f"{SCHEMA_OPTION}: infer finds no schema: {error}, probably because field names are data; "
            f"write the schema in {SCHEMA_OPTION}, with map<string,T> or string for the field that contains them"
        ) from None
    if kind is None:
        what = f"none of the {len(bodies)} sampled messages is" if bodies else "there is no message that is"
        raise RmqdError(
            f"{SCHEMA_OPTION}: infer finds nothing: {what} a JSON object; "
            f"write the schema as SQL columns in {SCHEMA_OPTION}, or send messages and start the group again"
        )
    schema = kind.fields_ddl
    folder.make()
    folder.put_new(SCHEMA_FILE, json.dumps({"schema": schema, "messages": told}, indent=1).encode())
    schema = _kept(folder)  # another driver may have stored its schema first
    log.warning(
        "spark.value_schema_inferred", group=group, schema=schema, messages=told, kept=f"{folder.url}/{SCHEMA_FILE}"
    )
    return schema


def _first_bodies(options: SourceOptions, starting: Mapping[MessageQueue, int]) -> list[bytes]:
    cluster = cluster_of(options.access)
    queues = SubscribedQueues(options).refreshed(cluster)
    lows, ends = values_or_raise(cluster.min_offsets(queues)), values_or_raise(cluster.max_offsets(queues))
    committed = values_or_raise(cluster.committed_offsets(options.group, queues - starting.keys()))
    at = {queue: starting.get(queue, committed.get(queue)) for queue in queues}
    each = max(1, MAX_SAMPLE_MESSAGES // max(1, len(queues)))
    spans: dict[MessageQueue, tuple[int, int]] = {}
    for queue, low in lows.items():
        first = at[queue]
        begin = min(max(low if first is None else first, low), ends[queue])
        spans[queue] = (begin, min(begin + each, ends[queue]))
    if all(begin == end for begin, end in spans.values()):
        spans = {queue: (max(low, ends[queue] - each), ends[queue]) for queue, low in lows.items()}
    looking = replace(options, fail_on_data_loss=False)
    found: list[bytes] = []
    ranges = ranges_of(cluster, looking, spans)
    for one in ranges:
        size = 0
        for batch in read_ranges([one], DecodingOptions(("body",), is_permissive=True)):
            bodies = [body for body in batch.column("body").to_pylist() if body is not None]
            found += bodies
            size += sum(map(len, bodies))
            if size >= MAX_SAMPLE_BYTES // len(ranges):
                break
    return found
