"""`--workers N`: several processes that share the groups' queues as members of the same groups.

Each worker has its own client id, so the rebalance divides queues among workers like among any members. A group that
`rmqd restart` gave new code runs in a separate worker.
"""
