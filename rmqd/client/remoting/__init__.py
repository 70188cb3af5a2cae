"""Requests and responses over TCP connections. Each address has one connection, which is opened on demand.

A connection that has ended is never reused; ConnectionPool opens a new one. After a failure of an address, requests to
it fail at once for a while (`Breakers`), so that callers do not wait. Requests never wait for a connection to another
address.
"""
