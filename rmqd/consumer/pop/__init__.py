"""Groups in POP mode (RocketMQ 5): brokers distribute single messages and keep the offsets.

A popped message is invisible to other members for `pop_invisible_time`. Unless it is acknowledged, it becomes visible
again. So members share queues: a queue is not locked, and has no next owner to be drained for. Workers and settlement
are the ones of `consumer.handling`. Other groups load only the module `pop_retries` and the modules that it imports.
"""
