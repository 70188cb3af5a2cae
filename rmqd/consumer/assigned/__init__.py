"""Assignments of this member: the common part of pulled and popped ones, and their interface to the rest of the group.

The two kinds are `pull.assigned_queue.AssignedQueue` and `pop.assignment.PopAssignment`.

    assignment  Assignment: run, release, pause or move it
    loop        Loop: the pulls or pops that fetch its messages
    status      AssignmentStatus: state and figures
    stall       Stall: finds the cause of a stall
    leaving     Leaving: the start of a release, and the wait for batches in flight
"""
