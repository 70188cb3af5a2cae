"""Reading topics: the format `rocketmq`, from its options to the record batches of a task.

The driver chooses the offsets of a batch and splits them into ranges; executors pull a range and decode it to columns.
"""
