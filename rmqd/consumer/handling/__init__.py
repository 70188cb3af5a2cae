"""Handler calls: from the messages of a process queue to the handler's decisions, carried out.

`worker` is the hot path of the engine. It is the only module that calls a handler; `threads` makes synchronous calls
for it. An exception of a handler is a result of its batch; every other exception ends the group. Each consume mode has
its own service. A concurrent group hands out several batches of a queue at the same time. An orderly group hands out
one batch of a queue at a time, while it holds the queue's lock.

    line                Line: queues with messages, and idle workers
    gathering           GatheringLine: queues that wait for a full batch
    slots               HandlerSlots: the workers and their deadlines (`consume_timeout`)
    worker              Worker: takes a batch, calls the handler, finishes or settles the batch
    left_tasks          LeftTasks: warns of tasks that run on after the handler call that created them
    threads             a thread for each slot of a synchronous handler; calls of a handler's `start` and `stop`
    failures            FailurePolicy: retries in place, dead letters by exception
    auto_concurrency    AutoConcurrency: finds the number of concurrent calls
    circuit_breaker     the circuit's effect on calls, and on messages of failed calls
    deduplication       claims before a call, confirmations when its messages are settled
    transactions        custom offset stores: effect and offset in one transaction
    held_claims         HeldClaims: the claims of a group in this process
    apart               calls that operators request: outside the slots, without commit or send-back
    concurrently        the service of concurrent and pop groups
    orderly             the service of orderly groups
    by_key              the service of groups with `order_by`
    polls               PollService, PolledQueue: messages wait until a program polls them
    verdict             the decision about each message of a batch, from a call's end
    settlement          carries decisions out: acknowledge, retry, dead-letter
    orderly_settlement  the same in queue order: a failed message is retried before later messages
    keyed_settlement    the same by key: a failed message is retried before later messages of its key
    send_back           SendBack: sends retries and dead letters to a broker
    copies              copies of a message for another topic
    message_trace       RocketMQ's message trace: a hook that makes records
"""
