"""A name server and a broker inside a Python process, for trying rmqd and for testing handlers without a JVM.

`embedded.embedded_rocketmq` starts both. They speak the remoting protocol, on the codec of `wire` and on nothing of
`client`: a broker that shared the client's code would agree with its mistakes. Modules carry the names of RocketMQ's
classes, and behave as these do, faults included; the class is named in the first line.

    embedded                                 EmbeddedRocketMQ: both servers for as long as a block lasts
    server, channel, reply                   the listening side: connections, requests to processors, answers
    name_server, key_values                  the name server
    controller                               BrokerController: what a broker consists of
    settings, announced, mq_version          settings under RocketMQ's names; the announced address; versions
    topics, topic_attributes, system_topics  topics
    static_topics                            the logical queues of static topics
    priority                                 topics whose messages have priorities
    groups, members, locks, housekeeping     consumer groups, who is connected, queue locks, silent clients
    offsets                                  groups' offsets: committed, pulled, reset
    held_pulls                               long polling
    schedule, timers                         messages for later: by delay level, and for any time
    broker_stats, runtime_info               statistics, and what a broker says about itself
    journal                                  what survives the process beside the messages
    store                                    the messages
    processors                               the answers, one module for a subject
    filter                                   tags and SQL92
    pop                                      POP
"""
