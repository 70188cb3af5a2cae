"""Writing to topics: the format `rocketmq` as a sink.

Options and columns are checked before the first row is sent. A task uses the producer of its process.
"""
