"""The part of the groups that one of several worker processes runs."""

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
        """Return the client's options with an instance name for this worker.

        Two members with the same client id would allocate the same queues. DEFAULT is replaced by a name that no other
        process has.
        """
        if self.worker is None or options.instance_name == "DEFAULT":
            return options
        return replace(options, instance_name=f"{options.instance_name}-{self.worker}")

    def of_group(self, options: ConsumerOptions) -> ConsumerOptions:
        """Return the group's options with this worker's part of the rate limit; at least 1 per second, because 0 means
        no limit.
        """
        if self.worker is None or not options.pull_rate_limit:
            return options
        part, rest = divmod(options.pull_rate_limit, self.workers)
        return replace(options, pull_rate_limit=max(1, part + (1 if self.worker <= rest else 0)))

    def has(self, group: GroupConfig) -> bool:
        """Return whether this process runs the group.

        Only worker 1 runs broadcasting groups, where every member receives all messages, and groups on Spark, which has
        its own processes.
        """
        is_shared = group.message_model != "broadcasting" and group.engine != "spark"
        return is_shared or self.worker in (None, 1)
