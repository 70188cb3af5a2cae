"""Checks of a running group, which report each problem with its cause, its evidence and the next step.

The checks do not change consumption, except that a pull loop that hangs is restarted. Each problem is logged once when
it starts and once when it ends (`consumer.stats.counters.GroupProblems`).
"""
