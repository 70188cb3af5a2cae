"""Requests that operators send with mqadmin or a dashboard, and that a broker forwards to a member.

A reset is the only request that affects consumption.
"""
