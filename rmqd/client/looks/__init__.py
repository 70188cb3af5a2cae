"""Operators' queries about groups and topics of a cluster, answered by brokers.

The queries do not join a group, and do not pull under a group's name.

    brokers       Brokers: the masters of a cluster, queried in parallel
    groups        all groups, with their members and lag
    group         one group: its members, subscriptions, and the owner of each queue
    topics        all topics; one topic with its queues, and the groups that read it
    messages      single messages by their id or by a key
    windows       parts of queues, between offsets or times
    tail          messages of a topic as they arrive
    diagnosis     the diagnosis of a group, and its data
    broker_facts  data for the diagnosis: whether brokers answer, store messages, and have the right time
    waiting       data for the diagnosis: the messages that it names
    removal       removal of a group from a cluster
    mode          whether a group pops or pulls a topic, read and changed
"""
