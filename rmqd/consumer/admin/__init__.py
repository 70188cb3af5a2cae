"""Requests of operators that a broker forwards to a member: from mqadmin and dashboards.

Of these requests only a reset affects consumption.
"""
