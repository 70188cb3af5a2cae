"""One coroutine for each request that rmqd sends, with one module for each subject.

The first arguments are the RemotingClient and the peer's address. A coroutine returns a typed response. It raises a
subclass of BrokerError for an error code, RemotingError without a response, and ProtocolError for an invalid response.
The consumer sends its pulls and pops without this package, because many are in flight at once, and templates create
their frames.
"""
