"""One coroutine for each request that rmqd sends, by subject; each returns a typed answer or raises.

All take the RemotingClient and the peer's address first. They raise BrokerError (its class by response code) when the
peer refuses, RemotingError when no answer came, and ProtocolError when the answer cannot be read. Pulls and pops are
sent by the consumer itself, as many of them wait at once and their frames are made from templates.

    request       the way of every request: send, wait, turn a response code into an exception
    offset        a group's offsets, and the ends of queues
    group         members, heartbeats, subscriptions
    lock          queue locks
    pop           assignments by the broker, acknowledgements, invisible time
    pull          reading a queue without a group
    lite          which lite topics a client wants
    send          messages, and messages that are sent back
    route         routes
    admin         what operators and tests ask: cluster, topics, statistics, resets, single messages
    request_mode  whether a group pulls or pops a topic, as administrators set it
"""
