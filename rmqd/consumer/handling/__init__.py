"""From messages in a process queue to a handler's decision, carried out.

`worker` is the only module that calls a handler, `threads` where that is synchronous, and the hot path of the engine.
A handler's failure is an outcome of its batch; any other failure ends the group. The services differ by consume mode:
a concurrent group hands batches of a queue out side by side, an orderly one a batch at a time under the queue's lock.

    line                Line: the queues with messages, and the workers that sleep until there are some
    gathering           GatheringLine: queues that wait until they fill a batch
    slots               HandlerSlots: the workers and their deadlines (`consume_timeout`)
    worker              Worker: takes a batch, calls the handler, finishes or settles
    left_tasks          LeftTasks: warns of tasks that outlive the call in which the handler created them
    threads             a thread for each slot of a synchronous handler; calls of a handler's `start` and `stop`
    failures            around calls of groups that ask for it: retries in place, dead letters by exception
    auto_concurrency    how many calls at once the handler is given, where that is found out
    circuit_breaker     what the group's circuit does with calls, and with the messages of those that failed
    deduplication       around calls of groups that ask for it: claims before, confirmations when they are settled
    transactions        around calls of groups with an offset store of their own: effect and offset in one transaction
    held_claims         HeldClaims: the claims of a group in this process
    apart               calls that operators ask for: outside of the slots, without consequences
    concurrently        the service of concurrent and popping groups
    orderly             the service of orderly groups
    by_key              the service of groups with `order_by`
    polls               PollService, PolledQueue: messages wait until a program polls them
    verdict             what a handler call means for each message of its batch
    settlement          what becomes of each message: acknowledge, retry, dead-letter
    orderly_settlement  the same in order: what failed is repeated before what follows
    keyed_settlement    the same by key: what failed is repeated before the next one of its key
    send_back           SendBack: retries and dead letters as requests to a broker
    copies              what a copy of a message in another topic keeps
    message_trace       RocketMQ's message trace: a hook that makes records
"""
