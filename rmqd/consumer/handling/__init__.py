"""Handler calls: from the messages of a process queue to the handler's decisions, carried out.

`worker` is the hot path of the engine. It is the only module that calls a handler; `threads` makes synchronous calls
for it. An exception of a handler is a result of its batch; every other exception ends the group. Each consume mode has
its own service. A concurrent group hands out several batches of a queue at the same time. An orderly group hands out
one batch of a queue at a time, while it holds the queue's lock.
"""
