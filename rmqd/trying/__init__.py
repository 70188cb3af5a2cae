"""A group's handler over real messages, without a member in the group and without consequences for it.

Nothing here commits an offset, sends a message back or dead-letters it. What the handler does by itself is real. A
leaf: only the commands use this room.

    selection        which messages: by time, key or id, the newest, those that wait; and the batches that they make
    dead_letters     dead letters as their group would get them again
    order            what the process of a handler is told, and what it answers
    handler_main     the main program of that process
    calls            in it: the handler made, started, and called as the consumer calls it
    verdicts         in it: what a call means for each message of its batch
    places           the line of the handler's author that raised, hangs or crashed
    handler_process  that process as its parent holds it: one call at a time, with a time-out
    trial            batches one after the other, in as many processes as it takes
    bisect           the one message on which a batch or a process fails
"""
