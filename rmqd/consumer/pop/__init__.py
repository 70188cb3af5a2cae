"""Groups in POP mode (RocketMQ 5): brokers distribute single messages and keep the offsets.

A popped message is invisible to other members for `pop_invisible_time`. Unless it is acknowledged, it becomes visible
again. So members share queues: no queue is locked, or drained for a next owner. Workers and settlement are shared with
`consumer.handling`. Only POP groups load this package, except `pop_retries`.
"""
