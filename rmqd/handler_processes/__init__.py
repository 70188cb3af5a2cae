"""`handler.processes`: calls of a handler in worker processes of its own, for work that takes CPU time.

To the group this is an asynchronous handler: slots, deadlines, settlement, hooks and trace are those of every group,
and run in the daemon. The group's own handler, with its middleware and dependencies, is made, started and called in
each worker process, with one batch at a time. A process that dies, hangs past `consume_timeout` or uses up its memory
limit is killed and replaced alone, and the messages that it had are *suspects*: they are called alone from then on,
and one whose process is lost again is dead-lettered with why.

    order            what a worker process is told, and what it answers
    told_errors      exceptions of a worker process, as the daemon sees them
    handler_main     the main program of a worker process
    handler_process  HandlerProcess: one worker process, seen from the daemon
    pool             HandlerPool: the running ones and a warm spare; what is lost is replaced
    suspects         Suspects: which messages processes were lost over
    calls            the handler that the group sees: batches to processes, outcomes back
"""
