"""Queue ranges, with all settings that a Spark task needs to read them. Picklable; no I/O."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from rmqd.spark.session.spark_access import ClientAccess
from rmqd.wire.acl import Credentials
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.route_data import MASTER_ID
from rmqd.wire.headers.pull_headers import PullRequestTemplate
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import TOOLS_GROUP

EVERY_MESSAGE: Final = SubscriptionData("")
"""The broker-side filter that lets every message pass. It names no topic, because `QueueRange.queue` does."""


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """The broker id and the address "host:port" of a broker's master or slave process."""

    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        """Whether this process is the master. A slave may lack the newest messages."""
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """How an executor pulls a range. `patience_seconds` is how long it retries pulls while no replica answers."""

    group: str = TOOLS_GROUP
    batch_size: int = 32
    max_in_flight: int = 16
    timeout_seconds: float = 10.0
    patience_seconds: float = 60.0
    rows_per_batch: int = 4096
    bytes_per_batch: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRange:
    """The messages of one queue from offset `start` to before `end`.

    `replicas` are the processes of the queue's broker, the master first. If there are no replicas, or no replica
    answers, the executor queries the name servers in `access`.
    """

    queue: MessageQueue
    start: int
    end: int
    access: ClientAccess
    replicas: tuple[Replica, ...] = ()
    subscription: SubscriptionData = EVERY_MESSAGE
    pull: PullSettings = field(default_factory=PullSettings)
    fail_on_data_loss: bool = True

    def pull_template(self, credentials: Credentials | None) -> PullRequestTemplate:
        """Return the common part of the range's pull requests. Requests are signed unless `credentials` is None."""
        return PullRequestTemplate(
            group=self.pull.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            broker_name=self.queue.broker_name,
            expression_type=self.subscription.expression_type,
            subscription=self.subscription.sub_string,
            extra_fields=self.access.options.request_fields,
            credentials=credentials,
        )

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def split_ranges(ranges: Sequence[QueueRange], min_partitions: int | None, max_records: int | None) -> list[QueueRange]:
    """Split long ranges, so that there are about `min_partitions` ranges, each with at most `max_records` messages.

    None means no limit. The order of the ranges is kept, and empty ranges are not split.
    """
    total = sum(map(len, ranges))
    pieces: list[QueueRange] = []
    for whole in ranges:
        parts = 1
        if min_partitions is not None and len(ranges) < min_partitions:
            parts = round(len(whole) * min_partitions / max(total, 1))
        if max_records is not None:
            parts = max(parts, -(-len(whole) // max_records))
        parts = max(1, min(parts, len(whole)))
        cuts = [whole.start + len(whole) * part // parts for part in range(parts)] + [whole.end]
        pieces += [replace(whole, start=low, end=high) for low, high in pairwise(cuts)]
    return pieces


def group_into_tasks(
    pieces: Sequence[QueueRange], max_partitions: int | None, max_records: int | None
) -> list[tuple[QueueRange, ...]]:
    """Return the ranges of each Spark task. Each range is a task, unless there are more than `max_partitions` ranges.

    In that case ranges share tasks, so that all tasks have about the same number of messages. A task with several
    ranges has at most `max_records` messages, even if that needs more tasks. A task's ranges keep their order.
    """
    if max_partitions is None or len(pieces) <= max_partitions:
        return [(piece,) for piece in pieces]
    tasks: list[list[int]] = [[] for _ in range(max_partitions)]
    counts = [(0, number) for number in range(max_partitions)]  # (messages, task): a heap, the emptiest task first
    for place in sorted(range(len(pieces)), key=lambda place: -len(pieces[place])):
        count, number = counts[0]
        count += len(pieces[place])
        if max_records is not None and count > max_records and tasks[number]:
            number, count = len(tasks), len(pieces[place])
            tasks.append([place])
            heapq.heappush(counts, (count, number))
            continue
        tasks[number].append(place)
        heapq.heapreplace(counts, (count, number))
    return [tuple(pieces[place] for place in sorted(places)) for places in tasks]
