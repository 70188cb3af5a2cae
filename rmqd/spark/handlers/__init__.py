"""A group's handler on executors: takes ranges of queues, and returns their outcomes.

A task handles one range, and ends when each of its messages is acknowledged, sent back or dead-lettered. Slots, workers
and settlement are in `consumer.handling`.
"""
