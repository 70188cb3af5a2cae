"""The format `rocketmq` as a source: reads topics into Spark.

The driver splits a batch into ranges of queues. Executors pull the messages of a range, and decode them to columns.
"""
