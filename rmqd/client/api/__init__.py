"""One coroutine for each request that rmqd sends, in a module for each subject.

The first arguments are the RemotingClient and the peer's address. A coroutine returns a typed response. It raises a
subclass of BrokerError for an error code, RemotingError without a response, and ProtocolError for an invalid response.
The consumer sends pulls and pops itself, because many of them wait at once and templates create their frames.
"""
