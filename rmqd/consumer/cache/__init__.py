"""The messages of a queue in memory, and their limits. No I/O, no tasks; used in the event loop only.

Messages finish in any order but are committed in offset order. ProcessQueue holds the messages in between.

    process_queue        ProcessQueue: messages pulled, handed out, finished; which offset may be committed
    keyed_process_queue  KeyedProcessQueue: the same, with one message of each key in flight at a time
    flow_control         Thresholds: when a queue is not pulled because its cache is full
    rate_limit           RateLimit: a group's messages per second
"""
