"""Sending messages, and taking them back before their time, for retries, dead letters, message trace and `rmqd send`.

All tries of a send share one deadline. After a lost answer it is tried again, so a message may be stored twice.

    producer          Producer: one message, in up to three tries at different brokers; takes timer messages back
    outgoing_message  a message to send, and where it was stored
    passing           may_pass: whether a send that failed may succeed a moment later
    queue_selector    which queue an ordered message goes to
    trace_dispatcher  TraceDispatcher: message trace in batches, never in the way of anything else
    traced_producer   a producer whose messages are traced
"""
