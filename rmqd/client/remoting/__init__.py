"""Requests and responses over TCP connections. Each address has one connection, which is opened on demand.

A connection that has ended is never reused; ConnectionPool opens a new connection. After an address has failed,
requests to this address fail at once for a while (`Breakers`), so that callers do not wait. A request never waits for a
connection to another address.
"""
