"""One owned queue, from its previous owner to its next one. AssignedQueue runs it.

A queue's task sends one pull at a time. A lost lock, a reset or a hang interrupts its loop, which then continues at the
same offset. A broker's report about offsets is accepted only after it is confirmed (`response_validation`,
`OffsetMoves`). No message is skipped without a report.
"""
