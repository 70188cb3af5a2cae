"""Handlers of groups on Spark executors. Each task handles one range of a queue, and returns the range's outcome.

A task ends when each message of its range is acknowledged, sent back or dead-lettered. Handler slots, workers and the
settlement of messages are in `consumer.handling`.
"""
