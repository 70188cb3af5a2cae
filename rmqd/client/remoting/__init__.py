"""Requests and answers over connections, one for each address, made when needed.

A connection ends and is never reused; ConnectionPool makes the next one. Who does not answer is left alone for a while
(`breaker`), so that requests to it fail at once and nobody waits. No request waits for a connection to another
address.

    client             RemotingClient: `invoke` by address; what other rooms use
    pool               ConnectionPool: which connection serves an address; probes of silent peers
    connector          Connector: makes connections, and finds out why one failed
    connection         RemotingConnection: bytes in and out of one socket
    intake             Intake: bytes to commands, a bounded number in each turn of the event loop
    pending            PendingRequests: who waits for which answer, and until when
    peer_requests      PeerRequests: requests of brokers, and our answers
    breaker            Breakers: what is known against each address
    security           Security: keys, TLS settings, and what servers refuse
    tls                TLS contexts, and what a failed handshake means
    parsing            large bodies are parsed in a thread
    traffic, snapshot  counters of requests, and the client's snapshot
"""
