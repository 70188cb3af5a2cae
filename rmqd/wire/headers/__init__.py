"""Request and response headers: one dataclass each with Java's name, one module for each subject.

A command's `ext_fields` are strings; these classes give them names and types. A request's class has its `code`. Headers
of frequent commands (pulls and sends) are read and written by hand, because that is faster.

    base         Header: how a dataclass becomes ext fields and back
    pull         pulls, and the templates that write a queue's requests and a broker's responses
    pop          pops, acknowledgements, invisible time
    send         messages, and send-backs
    lite         pops of lite topics
    recall       recall of timer messages
    offset       a group's offsets, the ends of queues, resets
    group        members of groups, groups' settings, and requests from brokers to members
    topic        topics of a broker
    admin        requests of operators and tests: topics, statistics, single messages, settings
    name_server  routes; keys, values and topics of a name server
"""
