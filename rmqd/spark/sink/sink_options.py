"""The sink's options and columns, checked together before anything is sent. No I/O.

For a stream, Spark also passes its own options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rmqd.errors import ConfigError
from rmqd.spark import access
from rmqd.spark.access import Access
from rmqd.spark.option_values import GivenOptions, meant_or_all, milliseconds, positive
from rmqd.spark.sink.row_place import PLACE
from rmqd.spark.source.columns import COLUMNS
from rmqd.wire.topics import check_topic

NAMES: Final = (*access.NAMES, "topic", "sendParallelism", "unavailableToleranceMs")
MOST_IN_FLIGHT: Final = 1024
_FIELDS: Final = {
    "topic": ("topic", check_topic),
    "sendParallelism": ("in_flight", lambda text: min(positive(text), MOST_IN_FLIGHT)),
    "unavailableToleranceMs": ("tolerance_seconds", milliseconds),
}
"""Fields of SinkOptions that a single option sets."""
SPARKS_OWN: Final = frozenset(("path", "queryname", "checkpointlocation"))
_TEXT: Final = ("string",)
_NUMBER: Final = ("int", "bigint", "smallint", "tinyint")
# name: (valid SQL types, content)
SINK_COLUMNS: Final = {
    "body": (("binary", "string"), "the body; text is sent as UTF-8"),
    "topic": (_TEXT, "the row's topic, unless the option topic is set"),
    "tags": (_TEXT, "the tag"),
    "keys": (_TEXT, "the keys, separated by spaces"),
    "properties": (("map<string,string>",), "user properties; properties that RocketMQ sets itself are skipped"),
    "sharding_key": (_TEXT, "rows of one key go to one queue, in their order in the partition"),
    "delay_level": (_NUMBER, "the broker's delay level, 1 to 18; null or 0: none"),
    "deliver_at": (("timestamp",), "the delivery time, for the timer of a 5.x broker"),
    "queue_id": (_NUMBER, "the queue, by its number"),
    "broker": (_TEXT, "the broker of queue_id, if several brokers have the topic"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Destination and concurrency of a sink. `topic` is empty if a column gives it."""

    access: Access
    topic: str = ""
    in_flight: int = 64
    tolerance_seconds: float = 60.0
    leaves_out: bool = False
    """Whether a row that cannot be sent is skipped instead of failing its task."""


def parse_sink_options(
    values: Mapping[str, str], columns: Mapping[str, str], *, overwrite: bool, otherwise: Access | None = None
) -> SinkOptions:
    """Read the options of `save()` or `start()`, and check the columns, given as names and SQL types.

    `otherwise` is the default access to RocketMQ. Raises ConfigError with a line for each problem.
    """
    given = GivenOptions(values, NAMES, unknown="the sink has no such option", passed_over=SPARKS_OWN)
    problems = given.problems
    if otherwise is None or any(name in given.values for name in access.NAMES):
        otherwise, wrong = access.read_access(given.values)
        problems += wrong
    options = SinkOptions(access=otherwise, **given.fields(_FIELDS))
    if overwrite:
        problems.append('mode: a topic cannot be overwritten; use mode("append")')
    problems += column_problems(columns)
    if "topic" not in given.values and "topic" not in columns:
        problems.append("topic: missing; expected an option for all rows, or a column")
    if problems:
        raise ConfigError(problems)
    return options


def column_problems(columns: Mapping[str, str]) -> list[str]:
    """Return the problems of columns, by name and SQL type. Columns that only the source has are ignored."""
    problems = [] if "body" in columns else ["column body: missing; expected a binary or a string"]
    for name, type_name in columns.items():
        if name in SINK_COLUMNS:
            accepted = SINK_COLUMNS[name][0]
            if type_name not in accepted:
                problems.append(f"column {name}: is {type_name}; expected {', '.join(accepted)}")
        elif name not in (*COLUMNS, PLACE):
            problems.append(f"column {name}: the sink has no such column; {meant_or_all(name, tuple(SINK_COLUMNS))}")
    return problems
