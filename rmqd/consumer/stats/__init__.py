"""Counters and snapshots of a group. The package depends on no other part of the consumer, except the pauses.

Every message is counted, so counters are plain attributes without locks, used only in the event loop. A snapshot
contains the values of one moment. It is picklable, because worker processes and Spark drivers send it to the daemon.
"""
