"""A group's pipeline: the rows of its topics, a function over them, and the sinks for the result.

A sink writes one micro-batch at a time, on the driver. After a crash it receives the last batch again.
"""
