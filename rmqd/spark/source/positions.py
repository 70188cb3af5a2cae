"""Resolves the start and end options to offsets: ends of queues, committed offsets, and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rmqd.errors import RmqdError
from rmqd.spark.cluster import Cluster, everyone
from rmqd.spark.source.bounds import EARLIEST, LATEST, Bound
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.spark.source.options import SourceOptions


def starts_of(
    cluster: Cluster, options: SourceOptions, default: Bound, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, int]:
    """Return the start offset of each queue; `default` applies if no option sets it. Raises RmqdError like `resolve`.

    Unless set, retries are read from the first one, because all of them belong to this group.
    """
    bound, wanted = options.starting or default, set(queues)
    retries = {queue for queue in wanted if queue.topic == options.retry_topic}
    by_retries = {queue: bound.by_queue[queue] for queue in retries & bound.by_queue.keys()}
    by_others = {queue: value for queue, value in bound.by_queue.items() if queue not in retries}
    found = resolve(cluster, options, replace(bound, by_queue=by_others), wanted - retries, options.fallback)
    return found | resolve(cluster, options, replace(bound, by_queue=by_retries), retries, Bound("earliest"))


def resolve(
    cluster: Cluster, options: SourceOptions, bound: Bound, queues: Iterable[MessageQueue], otherwise: Bound
) -> dict[MessageQueue, int]:
    """Return an offset for each queue; `otherwise` is for queues that the bound does not cover.

    Raises RmqdError if a broker does not answer, or the bound names an unknown queue.
    """
    wanted = sorted(queues)
    unknown = sorted(set(bound.by_queue) - set(wanted))
    if unknown:
        raise RmqdError(f"offsets are given for {unknown[0]}, which is not one of the queues to read")
    found: dict[MessageQueue, int] = {}
    if bound.kind == "earliest":
        found = everyone(cluster.min_offsets(wanted))
    elif bound.kind == "latest":
        found = everyone(cluster.max_offsets(wanted))
    elif bound.kind == "committed":
        committed = everyone(cluster.committed(options.group, wanted))
        found = {queue: offset for queue, offset in committed.items() if offset is not None}
    elif bound.kind == "offsets":
        found = _named(cluster, bound.by_queue)
    elif bound.kind == "timestamp":
        found = _at(cluster, options, dict.fromkeys(wanted, bound.timestamp_ms))
    else:
        found = _at(cluster, options, bound.by_queue)
    missing = [queue for queue in wanted if queue not in found]
    if missing:
        found |= resolve(cluster, options, otherwise, missing, otherwise)
    return found


def _named(cluster: Cluster, by_queue: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    lows = everyone(cluster.min_offsets(queue for queue, offset in by_queue.items() if offset == EARLIEST))
    highs = everyone(cluster.max_offsets(queue for queue, offset in by_queue.items() if offset == LATEST))
    return {**by_queue, **lows, **highs}


def _at(cluster: Cluster, options: SourceOptions, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    found = everyone(cluster.offsets_at(times_ms))
    if options.must_find_timestamp:
        highs = everyone(cluster.max_offsets(times_ms))
        for queue, offset in sorted(found.items()):
            if offset >= highs[queue]:
                raise RmqdError(
                    f"{queue} has no message stored at or after {times_ms[queue]} (milliseconds since 1970); set "
                    "startingOffsetsByTimestampStrategy=latest to start such a queue at its end"
                )
    return found
