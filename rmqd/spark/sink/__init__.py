"""The format `rocketmq` as a sink: sends the rows of a DataFrame to topics.

Options and columns are checked before the first row is sent. Tasks that run in the same process share a producer.
"""
