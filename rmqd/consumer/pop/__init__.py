"""Groups in POP mode (RocketMQ 5): brokers distribute single messages and keep the offsets.

A popped message is invisible to other members for `pop_invisible_time`. Unless it is acknowledged, it becomes visible
again. So members share queues, and no queue is locked, or drained for the next owner. The line, the workers and the
settlement are those in `consumer.handling`. Only POP groups load this package, except `after_pop` and `retries`.
"""
