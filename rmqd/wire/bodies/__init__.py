"""Bodies of requests and responses in JSON: one dataclass each with Java's name, one module for each subject.

The docstring of a class names the request or response that has this body. `from_json` and `to_json` read and write it.
A class declares only its fields with types and defaults; `base` does the rest. The dialect is fastjson's
(`loose_json`): map keys may be numbers or whole objects.

    base           Body: how a dataclass becomes JSON and back, and the annotations of fields
    queue_map      MessageQueue as an object, and as the key of a map
    route          a topic's brokers and queues
    static_topic   the logical queues of a static topic
    cluster        a name server's brokers, lists of topics, tables of texts
    heartbeat      a client's groups and their subscriptions
    group          a group's members and offsets, resets
    lock           queue locks
    pop            assignments by the broker, acknowledgements
    lite           a client's subscriptions to lite topics
    running_info   a member's answers to operators
    stats          offsets of groups and queues, counters, members as a broker sees them
    time_span      the age of a group's unhandled messages
    producers      producers of groups
    consume_queue  entries of a queue's index
    settings       topics and groups as brokers store them
    delay_offset   how far delay levels are delivered
    data_version   DataVersion: whether a table changed
"""
