"""Sends and recalls of messages, for retries, dead letters, message trace and `rmqd send`.

All attempts of a send share one deadline. A send is repeated if its response is lost, so a message may be stored twice.

    producer          Producer: sends a message, with up to three attempts at different brokers; recalls timer messages
    outgoing_message  a message to send, and the result of the send
    passing           may_pass: whether a failed send may succeed a moment later
    queue_selector    selects the queue of an ordered message
    trace_dispatcher  TraceDispatcher: message trace in batches, without delaying anything else
    traced_producer   a producer whose messages are traced
"""
