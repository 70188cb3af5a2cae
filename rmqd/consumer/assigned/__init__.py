"""The assignments of this member: the base class of pulled and popped assignments, and its helpers.

The two kinds of assignment are `pull.assigned_queue.AssignedQueue` and `pop.pop_assignment.PopAssignment`.
"""
