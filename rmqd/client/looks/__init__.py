"""What operators ask about a cluster, of any client's groups; brokers answer it.

Nobody joins a group here, or pulls under a group's name.

    brokers       Brokers: the masters of a cluster, asked side by side
    groups        which groups there are, and how far each is
    group         one group: its members, what they subscribe to, who owns which queue
    topics        which topics there are; one topic with its queues, and the groups that read it
    messages      single messages by their id or by a key
    windows       parts of queues, between offsets or times, read
    tail          messages of a topic as they come
    diagnosis     what a diagnosis of a group is judged by, and the diagnosis
    broker_facts  for that: whether brokers answer, store messages, and have the time
    waiting       for that: messages that it names
    removal       taking a group off a cluster
    mode          whether a group pops or pulls a topic; it is changed here, too
"""
