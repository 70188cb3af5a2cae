"""`--workers N`: several processes that share the groups' queues as members of the same groups.

Each worker has a client id of its own, so brokers divide queues among workers as among any members.

    pool            WorkerPool: the parent; starts, asks, replaces
    worker          the worker's main program
    worker_process  one worker, as the parent holds it
"""
