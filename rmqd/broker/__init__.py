"""A name server and a broker in a Python process, for trying rmqd and testing handlers without a JVM.

`embedded.embedded_rocketmq` starts both. They speak the remoting protocol with the codec of `wire`, and import nothing
from `client`: a broker that shared the client's code would also share its mistakes. Modules have the names of
RocketMQ's classes and behave like them, including their bugs. The first line of a module names the class.

    embedded                                 EmbeddedRocketMQ: runs both servers for the duration of a block
    server, channel, reply                   the listening side: connections, requests to processors, responses
    name_server, key_values                  the name server
    controller                               BrokerController: the parts of a broker
    settings, announced, mq_version          settings under RocketMQ's names; the announced address; versions
    topics, topic_attributes, system_topics  topics
    static_topics                            the logical queues of static topics
    priority                                 topics whose messages have priorities
    groups, members, locks, housekeeping     consumer groups, connected members, queue locks, silent clients
    offsets                                  groups' offsets: committed, pulled, reset
    held_pulls                               long polling
    schedule, timers                         delayed messages: by delay level, and by time
    broker_stats, runtime_info               statistics, and a broker's report on itself
    journal                                  small state that survives the process, in addition to the messages
    store                                    the messages
    processors                               the responses, one module for each subject
    filter                                   tags and SQL92
    pop                                      POP
"""
