"""What a group counts and tells. Knows nothing of the rest of the consumer but its pauses.

Counting happens for every message, so it is attributes and no locks: all of it in the event loop. Snapshots are taken
whole, are plain values, and pickle: workers and drivers of Spark send them to the daemon.

    counters  TopicStats: counters by topic; those of the retry topic by the topic that a message came from
    problem   Problem: cause, evidence, next step; the closed lists of causes; a group's problems, logged once
    snapshot  GroupSnapshot, TopicSnapshot, QueueSnapshot: what metrics and status are rendered from
"""
