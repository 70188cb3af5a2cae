"""Requests and responses over connections, one for each address, opened on demand.

A connection ends and is never reused; ConnectionPool opens the next one. An unresponsive peer is not contacted for a
while (`Breakers`), so that requests to it fail at once and callers do not wait. Requests never wait for a connection to
another address.
"""
