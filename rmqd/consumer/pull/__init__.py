"""One owned queue, from its previous owner to its next one. AssignedQueue runs it.

One task sends one pull at a time. A lost lock, a reset or a hang cancels the task, and a new task continues at the same
offset. A broker's statement about offsets is accepted only after it is confirmed (`evidence`, `offset_doubt`). No
message is skipped without a report.

    assigned_queue    AssignedQueue: acquisition, pull loop, lost and regained lock
    giving_up         GivingUp: drain, last commit, unlock
    loop              PullLoop: pulls, accepts messages, waits after a broker's error
    pulled_queue      PulledQueue: the queue's cache and state; the waits while it is paused, full or stuck
    request           PullRequest: chooses replica and filter of a pull; handles late responses
    evidence          PullEvidence: the trusted part of a response
    arrivals          Arrivals: corrupt, filter, hooks, counts, cache; the steps for pulls, pops and Spark's ranges
    opening           decompression and inner batches, in a thread if they take long
    corrupt_messages  messages that are stored corrupt: `on_corrupt_message`
    offset_moves      OffsetMoves: a broker refuses an offset, an operator resets the group
    offset_doubt      OffsetDoubt: how long a broker must report a queue's end below the committed offset
    backoff           PullBackoff: the pause after each kind of response; `until_answered`: retries of a start
    status            QueueStatus: a queue's state and figures, and observations about a stalled queue
"""
