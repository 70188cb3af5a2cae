"""Calls a group's handler with real messages, without joining the group and without consequences for it.

This package commits no offset, and sends back or dead-letters no message. The handler's own effects are real. Only the
commands import it.

    selection        selects messages by time, key or id, the latest, or the waiting ones; and makes batches
    dead_letters     dead letters in the form in which their group would receive them again
    order            the requests to the handler's process, and its responses
    handler_main     the main program of that process
    calls            in it: creates, starts and calls the handler as the consumer does
    verdicts         in it: how a call settles each message of its batch
    places           the handler's source line that raised, hangs or crashed
    handler_process  that process, as seen by its parent: one call at a time, with a timeout
    trial            batches one after the other, in as many processes as needed
    bisect           the one message at which a batch or a process fails
"""
