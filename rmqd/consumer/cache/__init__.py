"""The messages of a queue in memory, and their limits. No I/O, no tasks; used in the event loop only.

Messages finish in any order but are committed in offset order. ProcessQueue holds each message until its commit.
"""
