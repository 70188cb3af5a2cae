"""Calls the source of a handler group as Spark does, without Spark, in the order that `micro_batches` describes.

Ranges are handled in this process, one after another.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmqd.config.model.root_model import RootConfig
from rmqd.spark.handlers.group_source import HandlerSourceSettings, HandlerStreamReader
from rmqd.spark.handlers.handler_tasks import started_task_handler
from rmqd.spark.handlers.range_outcome import RangeOutcome
from rmqd.spark.session.group_spec import GroupSpec
from rmqd.spark.session.queue_range import QueueRange
from rmqd.wire.message_queue import MessageQueue

_numbers = itertools.count()


@dataclass
class Checkpoint:
    """The logs that Spark keeps."""

    offsets: list[str] = field(default_factory=list)
    commits: int = 0


def order_of(
    nameserver: str,
    handler: Callable[..., object],
    *,
    concurrency: int = 4,
    options: Mapping[str, Any] | None = None,
    **keys: Any,
) -> GroupSpec:
    """A group `shop` that handles `orders` by a function or a class at the top level of a module."""
    plugin = f"{handler.__module__}:{handler.__qualname__}"
    called = {"plugin": plugin, "concurrency": concurrency, "options": dict(options or {})}
    group = {
        "engine": "spark", "subscriptions": {"orders": "*"},
        "consume_from_where": "first_offset", "handler": called, **keys,
    }  # fmt: skip
    client = {"poll_name_server_interval": "10ms"}
    config = {"nameserver": [nameserver], "client": client, "groups": {"shop": group}}
    return GroupSpec("shop", RootConfig.model_validate(config))


class GroupQuery:
    """One run of a group's query, and the worker process of its tasks."""

    def __init__(
        self,
        order: GroupSpec,
        checkpoint: Checkpoint | None = None,
        starting: Mapping[MessageQueue, int] | None = None,
    ) -> None:
        plan = HandlerSourceSettings(
            spec=pickle.loads(pickle.dumps(order)),
            start_offsets=starting,
            pause_file="",
            config_key="",
            handler_slots=2,
        )
        self.reader = HandlerStreamReader(plan)
        pickle.dumps(self.reader)
        self.checkpoint = checkpoint or Checkpoint()
        self.outcomes: list[RangeOutcome] = []
        self.ranges: list[QueueRange] = []
        self._limit = self.reader.getDefaultReadLimit()
        self.process = started_task_handler(plan.spec, f"query {next(_numbers)}")

    def poll(self) -> bool:
        """Make and run one batch if there is something to do."""
        log = self.checkpoint
        if len(log.offsets) == log.commits:
            start = log.offsets[-1] if log.offsets else json.dumps(self.reader.initialOffset())
            end = json.dumps(self.reader.latestOffset(json.loads(start), self._limit))
            if log.offsets and end == start:
                return False
            log.offsets.append(end)
        start = log.offsets[-2] if len(log.offsets) > 1 else json.dumps(self.reader.initialOffset())
        for part in self.reader.partitions(json.loads(start), json.loads(log.offsets[-1])):
            queue_range = pickle.loads(pickle.dumps(part.value))
            self.ranges.append(queue_range)
            self.outcomes.append(RangeOutcome.decode(self.process.handle(queue_range).encode()))
        log.commits += 1
        return True

    def run_until(self, is_so: Callable[[], object]) -> None:
        """Poll until `is_so` returns True, then once more, so that the last batch is committed."""
        while not is_so():
            self.poll()
        self.poll()

    def handled(self, *, is_retry: bool = False) -> dict[str, int]:
        """The number of attempts by result, over all batches, without zeros."""
        counts: dict[str, int] = {}
        for outcome in self.outcomes:
            for topic in outcome.topic_counters:
                if topic.is_retry == is_retry:
                    for result, count in topic.handled.items():
                        counts[result] = counts.get(result, 0) + count
        return {result: count for result, count in counts.items() if count}
