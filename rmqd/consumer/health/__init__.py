"""Detects problems of a group and reports their cause, evidence and next step.

The checks do not change consumption. The only repair is the restart of a pull loop that hangs. Each problem is logged
once when it starts and once when it ends (`consumer.stats.counters.GroupProblems`).
"""
