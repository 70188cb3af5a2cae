"""Bodies of requests and replies in JSON, one dataclass each under Java's name for it, one module per subject.

A class says in its docstring which request or reply has it; `from_json` and `to_json` read and write it. Its fields,
types and defaults are all that there is to declare: `base` does the rest. The dialect is fastjson's (`loose_json`): map
keys may be numbers or whole objects.

    base           Body: how a dataclass becomes JSON and back, and what an annotation may add
    queue_map      MessageQueue as an object, and as the key of a map
    route          where a topic's queues are
    static_topic   the logical queues of a static topic
    cluster        a name server's brokers, lists of topics, tables of texts
    heartbeat      a client's groups and their subscriptions
    group          a group's members and offsets, resets
    lock           queue locks
    pop            assignments by the broker, acknowledgements
    lite           which lite topics a client wants
    running_info   what a member answers operators
    stats          places of groups, ends of queues, counters, members as a broker sees them
    time_span      the age of what a group has not handled
    producers      producers of groups
    consume_queue  entries of a queue's index
    settings       topics and groups as brokers keep them
    delay_offset   how far delay levels are delivered
    data_version   DataVersion: whether a table changed
"""
