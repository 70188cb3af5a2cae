"""One owned queue, from its former owner to its next one: AssignedQueue runs it.

One pull at a time, by one task; a lost lock, a reset or a hang cuts the task short and begins it anew at the same
place. What a broker says of an offset is believed only as far as it is proven (`evidence`, `offset_doubt`). Nothing is
passed over silently.

    assigned_queue    AssignedQueue: take-over, pull loop, lost and regained lock
    giving_up         GivingUp: drain, last commit, unlock
    loop              PullLoop: ask, take what came, wait where the broker refuses
    pulled_queue      PulledQueue: what is cached and known of the queue; the waits while it is paused, full or stuck
    request           PullRequest: to which replica, by which filter; what an answer says that comes too late
    evidence          PullEvidence: how much of a reply is believed
    arrivals          Arrivals: corrupt, filter, hooks, counts, cache; the order for pulls, pops and Spark's ranges
    opening           decompression and inner batches, in a thread where they take long
    corrupt_messages  messages that are stored corrupt: `on_corrupt_message`
    offset_moves      OffsetMoves: a broker refuses an offset, an operator resets the group
    offset_doubt      how long a broker must say that its queue ends before the committed offset
    backoff           PullBackoff: the pause before the next pull, after each kind of answer; `until_answered`: a start
    status            QueueStatus: a queue's state and figures, and what is seen of it when it stands still
"""
