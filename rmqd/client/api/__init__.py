"""One coroutine for each request that rmqd sends, by subject; each returns a typed answer or raises.

All take the RemotingClient and the peer's address first. They raise BrokerError (its class by response code) when the
peer refuses, RemotingError when no answer came, and ProtocolError when the answer cannot be read.
"""
