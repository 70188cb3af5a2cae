"""`--workers N`: several processes that share the groups' queues as members of the same groups.

Each worker has its own client id, so the rebalance divides queues among workers like among any members.

    pool            WorkerPool: the parent; starts, queries and replaces workers
    worker          the worker's main program
    worker_process  one worker, as seen by the parent
"""
