"""Replays a range of a group's messages under a shadow group, which is removed at the end.

The group itself does not change: the shadow group has its own members, offsets and retry topic. A replay sends nothing
back. Failed messages are retried in this process, and messages that fail at every attempt are written to a file. Only
the commands import this package.

    plan       ReplayPlan: the messages of a replay, kept in a file until its end
    ways_back  how failed messages are retried
    run        one run, until all messages are handled or it is stopped
    shadow     the shadow group on the brokers: create, query, remove
"""
