"""The pulls of one queue, from its acquisition to its release. `AssignedQueue` runs them.

A queue's task sends one pull at a time. A lost lock, a reset or a hang interrupts the task's pull loop, which is then
restarted. Surprising offsets in a broker's response are accepted only after they are confirmed (`response_validation`,
`OffsetMoves`). Each skipped message is reported.
"""
