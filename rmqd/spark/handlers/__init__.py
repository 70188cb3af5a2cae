"""A group's handler on executors: ranges of queues in, what became of them out.

A task has one range, and ends when each of its messages is acknowledged, sent back or dead-lettered. Slots, workers
and settlement are those of `consumer.handling`.

    handler_query                 the streaming query, on the driver
    handler_source, group_source  the source whose tasks handle messages; what sources of a group share
    group_options                 options of the source that a configuration has
    handler_process               the handler in one of Spark's Python processes
    range_run                     RangeRun: one range, from the first pull to the last finished message
    range_pulls                   RangePulls: its pulls, in an event loop
    outcome                       RangeOutcome: the row that a task gives to the driver
    pace, batch_time              how many messages the next micro-batch takes; how long the last one took
    watched_offsets               commits that leave alone what somebody else has set
    worker_end                    a callback before Spark's Python process ends
"""
