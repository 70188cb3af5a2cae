"""The responses to requests, one module for each subject.

A processor returns a reply, raises a refusal, or answers later (`broker.reply`).

    base, table                             the common base of processors; all processors
    pull, queue_ends                        pulls; ends of queues, and offsets by time
    send, send_back, recall                 sent messages, send-backs, recalled timer messages
    clients, client_config                  heartbeats and unregistrations; the check of a subscription
    consumers, locks                        members and offsets of a group; queue locks
    pop, pop_checks, pop_taking             pops, the check of a group's permission, the messages of one pop
    pop_polling, acks, assignment           POP: polling, acknowledgements, assignments of queues
    lite, lite_acks                         lite topics: subscriptions, and pops of them; acknowledgements
    queries                                 messages by key or log offset
    operators, connections                  operators' requests to members; connected clients
    topic_admin, group_admin, offset_admin  administrators' changes
    static_topics                           static topics, likewise
    runtime, stats, schedule                settings, statistics, delayed messages
"""
