"""What is answered to each request, one module for a subject. The numbers are request codes.

A processor has a table of codes. For each it gives a reply, refuses by an exception, or answers later
(`broker.reply`).

    table                                   every processor; the controller asks it for the codes' tables
    pull, queue_ends                        pulls (11, 361); ends of queues, offsets by time (29 to 32)
    send, send_back                         messages (10, 310, 320); those that a consumer gives back (36)
    clients, client_config                  heartbeats, good-byes (34, 35); the check of a subscription (46)
    consumers, locks                        members and offsets of a group (14, 15, 38); queue locks (41, 42)
    pop, pop_checks, pop_taking             pops: may the group read the queue, which messages one pop takes
    pop_polling, acks, assignment           POP: polling, acknowledgements, the division of queues
    queries                                 messages by key or log offset (12, 33)
    operators, connections                  what operators ask members (223, 307, 309); who is connected
    topic_admin, group_admin, offset_admin  what administrators change
    runtime, stats, schedule                settings, statistics, delayed messages
"""
