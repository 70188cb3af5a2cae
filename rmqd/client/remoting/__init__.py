"""Requests and responses over connections, one for each address, opened on demand.

A connection ends and is never reused; ConnectionPool opens the next one. An unresponsive peer is not contacted for a
while (`breaker`), so that requests to it fail at once and callers do not wait. Requests never wait for a connection to
another address.

    client             RemotingClient: `invoke` by address; the interface for other rooms
    pool               ConnectionPool: the connection that serves each address; probes of silent peers
    connector          Connector: opens connections, and finds out why one failed
    connection         RemotingConnection: bytes in and out of one socket
    intake             Intake: bytes to commands, a limited number in each turn of the event loop
    pending            PendingRequests: the callers that wait for responses, and their deadlines
    peer_requests      PeerRequests: requests of brokers, and our responses
    breaker            Breakers: the failures of each address
    security           Security: keys, TLS settings, and refusals of servers
    tls                TLS contexts, and explanations of failed handshakes
    parsing            parses large bodies in a thread
    traffic, snapshot  counters of requests, and the client's snapshot
"""
