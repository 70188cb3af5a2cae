"""A group that pops (POP, RocketMQ 5): brokers hand messages out one by one and keep the offsets.

What is popped is hidden from other members for `pop_invisible_time`; it is acknowledged message by message, or seen
again. So members share queues, and no queue is locked or drained for the next owner. Line, workers and settlement are
those of `consumer.handling`. Loaded only for groups that pop, but for `after_pop` and `retries`.

    division       DivisionByBroker: what this member pops and what it pulls, as a broker says
    assignment     PopAssignment: one queue, or all of a broker, from the first pop to the last acknowledgement
    loop           PopLoop: pops, and what came into process queues
    request        PopRequest: the request, and answers that nobody waits for any more
    pop_time       PopTime: when brokers popped, on this process's clock
    block          PopBlock: what one pop took of one queue, and the handles that acknowledge it
    process_queue  PopProcessQueue: finishing a message acknowledges it
    receipts       PopReceipts: acknowledge, hide for longer, show again; gathered broker by broker
    send_back      PopSendBack: a retry hides the message for the time of its delay level
    retries        PopRetries: pop retry topics of a group that pulls again
    after_pop      DivisionAfterPop: the same for a group whose consume_mode is not pop any more
    start          a new group is founded before its first pop
    status         PopStatus: its state and figures, and what is seen of it when it stands still
"""
