"""The counters of a group, and its snapshots.

Every message is counted, so counters are plain attributes without locks, used only in the event loop. A snapshot
contains the values of one moment. It is picklable, because worker processes and Spark drivers send it to the daemon.
"""
