"""`handler.processes`: calls of a handler in separate worker processes, for CPU-bound work.

To the group, this is an asynchronous handler: slots, deadlines, settlement, hooks and trace run in the daemon, as for
every group. The handler, with its middleware and dependencies, is created, started and called in each worker process,
one batch at a time. A process that dies, exceeds `consume_timeout` or reaches its memory limit is killed and replaced;
the others are not affected. Its messages become *suspects*: each is called alone from then on. If a process is lost
again over one of them, that message is dead-lettered with the reason.

    order            the requests to a worker process, and its responses
    told_errors      exceptions of a worker process, as the daemon sees them
    handler_main     the main program of a worker process
    handler_process  HandlerProcess: one worker process, as seen by the daemon
    pool             HandlerPool: the running processes and a warm spare; replaces lost processes
    suspects         Suspects: the messages over which processes were lost
    calls            the handler that the group sees: passes batches to processes, and returns the results
"""
