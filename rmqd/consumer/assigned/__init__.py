"""What this member has, pulled or popped: what the rest of its group asks of it, and what both kinds have in common.

The kinds are `pull.assigned_queue.AssignedQueue` and `pop.assignment.PopAssignment`.

    assignment  Assignment: run it, have it leave, pause it, move it
    loop        Loop: what brings its messages, by pulls or by pops
    status      AssignmentStatus: its state, its figures, and what is seen of it when it stands still
    stall       Stall: why, from what is seen; the first cause that explains it
    leaving     Leaving: that it was told to leave, and the wait for what handlers have
"""
