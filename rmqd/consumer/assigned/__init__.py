"""Assignments of this member: the common part of pulled and popped ones, and their interface to the rest of the group.

The two kinds are `pull.assigned_queue.AssignedQueue` and `pop.pop_assignment.PopAssignment`.
"""
