"""The storage of messages, and their lookup.

Messages are in memory, or in a folder's SQLite database. As in RocketMQ, all messages are one log, and queues are
indexes into it.
"""
