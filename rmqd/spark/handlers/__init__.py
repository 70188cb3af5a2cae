"""A group's handler on executors: takes ranges of queues, and returns their outcomes.

A task handles one range, and ends when each of its messages is acknowledged, sent back or dead-lettered. Slots, workers
and settlement are in `consumer.handling`.

    handler_query                 the streaming query, on the driver
    handler_source, group_source  the source whose tasks handle messages; shared parts of a group's sources
    group_options                 the source's options in a configuration
    handler_process               the handler in one of Spark's Python processes
    range_run                     RangeRun: one range, from the first pull to the last finished message
    range_pulls                   RangePulls: its pulls, in an event loop
    outcome                       RangeOutcome: the row that a task returns to the driver
    pace, batch_time              the size of the next micro-batch; the duration of the last one
    watched_offsets               commits that never overwrite an operator's change
    worker_end                    a callback before Spark's Python process ends
"""
