"""One coroutine for each request that rmqd sends, by subject. Each returns a typed response or raises an error.

The first arguments are the RemotingClient and the peer's address. They raise BrokerError (a subclass for each response
code) if the peer refuses, RemotingError if there is no response, and ProtocolError if the response cannot be read. The
consumer sends pulls and pops itself, because many wait at once and templates create their frames.
"""
