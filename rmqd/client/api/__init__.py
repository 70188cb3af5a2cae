"""One coroutine for each request that rmqd sends, by subject. Each returns a typed response or raises an error.

The first arguments are the RemotingClient and the peer's address. They raise BrokerError (a subclass for each response
code) if the peer refuses, RemotingError if there is no response, and ProtocolError if the response cannot be read. The
consumer sends pulls and pops itself, because many wait at once and templates create their frames.

    request       the common part of all requests: send, wait, turn a response code into an exception
    offset        a group's offsets, and the ends of queues
    group         members, heartbeats, subscriptions
    lock          queue locks
    pop           assignments by the broker, acknowledgements, invisible time
    pull          reading a queue without a group
    lite          a client's subscriptions to lite topics
    send          messages and send-backs
    route         routes
    admin         requests of operators and tests: cluster, topics, statistics, resets, single messages
    request_mode  whether a group pulls or pops a topic, as administrators set it
"""
