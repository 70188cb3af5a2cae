"""Which part of the groups one process has, where a daemon has several worker processes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rmqd.client.options import ClientOptions
from rmqd.config.model.root import GroupConfig
from rmqd.consumer.options import ConsumerOptions


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """`worker` is the number of this process among `workers` processes, from 1; None in a daemon without workers."""

    worker: int | None = None
    workers: int = 1

    def of_client(self, options: ClientOptions) -> ClientOptions:
        """The client's options with an instance name of the worker's own.

        Two members with one client id would take the same queues. DEFAULT stands for a name that no other process has.
        """
        if self.worker is None or options.instance_name == "DEFAULT":
            return options
        return replace(options, instance_name=f"{options.instance_name}-{self.worker}")

    def of_group(self, options: ConsumerOptions) -> ConsumerOptions:
        """The group's options with the worker's part of the rate limit: at least 1 a second, since 0 means no limit."""
        if self.worker is None or not options.pull_rate_limit:
            return options
        part, rest = divmod(options.pull_rate_limit, self.workers)
        return replace(options, pull_rate_limit=max(1, part + (1 if self.worker <= rest else 0)))

    def has(self, group: GroupConfig) -> bool:
        """Whether this process runs the group.

        Only one worker runs a broadcasting group, since every member of it gets all messages, or a group on Spark,
        which has its own processes.
        """
        is_shared = group.message_model != "broadcasting" and group.engine != "spark"
        return is_shared or self.worker in (None, 1)
