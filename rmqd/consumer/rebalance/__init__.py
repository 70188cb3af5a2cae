"""The assignment of queues to this member, and the hand-over of queues between members.

`rebalance` computes which queues this member gets. Ownership decides when it may start with a queue that another member
owned. In a group that is not orderly, the next owner waits for the previous owner, for a limited time (`ownership`). In
an orderly group it waits for the queue's lock, without a limit (`queue_lock`). See docs/proof/ownership.md.
"""
