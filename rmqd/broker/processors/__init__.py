"""What is answered to each request, one module for a subject.

A processor gives a reply to each request, refuses by an exception, or answers later (`broker.reply`).

    base, table                             what processors have in common; every processor
    pull, queue_ends                        pulls; ends of queues, and offsets by time
    send, send_back, recall                 messages; those that a consumer gives back, or a producer takes back
    clients, client_config                  heartbeats, good-byes; the check of a subscription
    consumers, locks                        members and offsets of a group; queue locks
    pop, pop_checks, pop_taking             pops: may the group read the queue, which messages one pop takes
    pop_polling, acks, assignment           POP: polling, acknowledgements, the division of queues
    lite, lite_acks                         lite topics: subscriptions, and pops of them; acknowledgements
    queries                                 messages by key or log offset
    operators, connections                  what operators ask members; who is connected
    topic_admin, group_admin, offset_admin  what administrators change
    static_topics                           static topics, likewise
    runtime, stats, schedule                settings, statistics, delayed messages
"""
