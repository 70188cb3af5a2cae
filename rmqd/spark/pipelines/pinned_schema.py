"""`valueSchema: infer`: the schema of a pipeline's bodies, found once by looking at some, and kept.

It is kept beside the checkpoint's generations: the group has the same columns after each restart and each reset, and
on whatever machine. A body that does not fit it is bad, as with a schema that was written down.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from rmqd.config.model.spark import SparkConfig
from rmqd.errors import RmqdError
from rmqd.spark.cluster import cluster_of, everyone
from rmqd.spark.handlers.group_options import SCHEMA, is_inferred
from rmqd.spark.patience import patiently
from rmqd.spark.source.batch_reader import ranges_of
from rmqd.spark.source.columns import Decoding
from rmqd.spark.source.fetch import read_ranges
from rmqd.spark.source.subscribed import Subscribed
from rmqd.spark.values.inferring import TooManyFieldsError, ddl_of, infer_kind
from rmqd.spark.values.kinds import parse_kind

if TYPE_CHECKING:
    from rmqd.spark.group_order import GroupOrder
    from rmqd.spark.source.options import SourceOptions
    from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

FILE: Final = "value_schema.json"
LOOKED_AT: Final = 10_000
"""How many messages are looked at: those that the group begins with, or where there are none yet, those before."""


LOOKED_AT_BYTES: Final = 64 << 20
"""How large bodies are together, about: behind that no more is looked at."""


class Folder(Protocol):
    """What is asked of a folder: `HadoopFolder` has it, and tests have one without a JVM."""

    @property
    def url(self) -> str:
        """Where it is."""

    def make(self) -> None:
        """Create it."""

    def exists(self, path: str) -> bool:
        """Whether there is a file."""

    def read(self, path: str) -> bytes:
        """A file's content."""

    def put_new(self, path: str, content: bytes) -> bool:
        """Write a file in one step, unless there is one."""


def with_pinned_schema(
    order: GroupOrder, options: SourceOptions, starting: Mapping[MessageQueue, int] | None, folder: Folder
) -> GroupOrder:
    """The order with the schema that the group's bodies have, where its configuration asks to infer it.

    `folder` keeps it; `starting` is where the query begins, if that is known. Raises RmqdError where no body tells it.
    """
    settings = order.settings
    spark = settings.spark or SparkConfig()
    if not is_inferred({name: str(value) for name, value in spark.options.items()}):
        return order
    name = next(name for name in spark.options if name.lower() == SCHEMA.lower())  # Spark reads it in any case
    schema = _kept(folder) or _inferred(order.name, options, starting, folder)
    spark = spark.model_copy(update={"options": {**spark.options, name: schema}})
    config = order.config.of_group(order.name, settings.model_copy(update={"spark": spark}))
    return replace(order, config=config)


def _kept(folder: Folder) -> str:
    """The schema that is kept; empty where there is none. Raises RmqdError for a file that has none."""
    if not folder.exists(FILE):
        return ""
    try:
        schema = str(json.loads(folder.read(FILE))["schema"])
        parse_kind(schema)
    except (ValueError, KeyError, TypeError) as error:
        raise RmqdError(
            f"{folder.url}/{FILE} does not tell the schema of bodies: {error}; accepted: the file deleted, so that it "
            f"is inferred anew, or {SCHEMA} written down"
        ) from error
    return schema


def _inferred(group: str, options: SourceOptions, starting: Mapping[MessageQueue, int] | None, folder: Folder) -> str:
    bodies = patiently(lambda: _first_bodies(options, starting or {}), options.tolerance_seconds)
    try:
        kind, told = infer_kind(bodies)
    except TooManyFieldsError as error:
        raise RmqdError(
            f"{SCHEMA}: infer finds no schema: {error}, as where names are data; accepted: {SCHEMA} written down, with "
            "map<string,T> or string for what has such names"
        ) from None
    if kind is None:
        what = f"none of the {len(bodies)} messages that were looked at is" if bodies else "there is no message that is"
        raise RmqdError(
            f"{SCHEMA}: infer finds nothing: {what} an object in JSON; accepted: columns as SQL writes them, or "
            "messages first: the group looks again when it is started again"
        )
    schema = ddl_of(kind)
    folder.make()
    folder.put_new(FILE, json.dumps({"schema": schema, "messages": told}, indent=1).encode())
    schema = _kept(folder)  # of another driver, if that was first
    log.warning("spark.value_schema_inferred", group=group, schema=schema, messages=told, kept=f"{folder.url}/{FILE}")
    return schema


def _first_bodies(options: SourceOptions, starting: Mapping[MessageQueue, int]) -> list[bytes]:
    cluster = cluster_of(options.access)
    queues = Subscribed(options).now(cluster)
    lows, ends = everyone(cluster.min_offsets(queues)), everyone(cluster.max_offsets(queues))
    committed = everyone(cluster.committed(options.group, queues - starting.keys()))
    at = {queue: starting.get(queue, committed.get(queue)) for queue in queues}
    each = max(1, LOOKED_AT // max(1, len(queues)))
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
        for batch in read_ranges([one], Decoding(("body",), permissive=True)):
            bodies = [body for body in batch.column("body").to_pylist() if body is not None]
            found += bodies
            size += sum(map(len, bodies))
            if size >= LOOKED_AT_BYTES // len(ranges):
                break
    return found
