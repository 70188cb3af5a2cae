"""What of a queue is in memory, and how much may be. No I/O, no tasks; used in the event loop only.

Messages are finished in any order, and committed in the order of their offsets: ProcessQueue keeps what lies between.

    process_queue        ProcessQueue: messages pulled, handed out, finished; which offset may be committed
    keyed_process_queue  KeyedProcessQueue: the same, with one message of each key handed out at a time
    flow_control         Thresholds: when a queue is not pulled because its cache is full
    rate_limit           RateLimit: a group's messages per second
"""
