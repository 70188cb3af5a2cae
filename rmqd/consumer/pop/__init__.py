"""Groups in POP mode (RocketMQ 5): brokers distribute single messages and keep the offsets.

A popped message is invisible to other members for `pop_invisible_time`. Unless it is acknowledged, it becomes visible
again. So members share queues, and no queue is locked, or drained for the next owner. The line, the workers and the
settlement are those in `consumer.handling`. Only POP groups load this package, except `after_pop` and `retries`.

    division       DivisionByBroker: queues to pop and queues to pull, as the broker assigns them
    assignment     PopAssignment: one queue, or all queues of a broker, from the first pop to the last acknowledgement
    loop           PopLoop: pops, and puts messages into process queues
    request        PopRequest: the request, and late responses
    pop_time       PopTime: when a broker popped, on this process's clock
    block          PopBlock: messages that one pop returned from one queue, and their handles
    process_queue  PopProcessQueue: finishing a message acknowledges it
    receipts       PopReceipts: acknowledge, extend the invisible time, end it; batched for each broker
    send_back      PopSendBack: a retry makes the message invisible for the time of its delay level
    retries        PopRetries: pop retry topics of a group that was switched to pull
    after_pop      DivisionAfterPop: the same if the group's consume_mode was changed
    start          start offsets of a new group, before its first pop
    status         PopStatus: state, figures and stall of an assignment
"""
