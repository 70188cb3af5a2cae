"""`--workers N`: several processes that share the groups' queues as members of the same groups.

Each worker has its own client id, so the rebalance divides the queues among workers like among any members. After
`rmqd restart`, a group runs with its new code in a separate worker.
"""
