"""Pipelines of groups on Spark: a user's function over the rows of the group's topics, and sinks for its result.

The driver passes one micro-batch at a time to a sink. After a crash, the sink receives the last micro-batch again.
"""
