"""The format `rocketmq` as a source: reads topics into Spark.

The driver splits the offsets of a batch into ranges of queues. Executors pull a range, and decode it to columns.
"""
