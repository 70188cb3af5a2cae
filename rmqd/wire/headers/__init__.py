"""Request and response headers, one dataclass each under Java's name for it, one module per subject.

A command's `ext_fields` are strings; these classes give them names and types. A request's class has its `code`. The
headers that come with every message, of pulls and sends, are read and written by hand where that is faster.

    base         Header: how a dataclass becomes ext fields and back
    pull         pulls, and the templates that write a queue's requests and a broker's replies
    pop          pops, acknowledgements, invisible time
    send         messages, and messages that are sent back
    lite         pops of lite topics
    recall       timer messages that are taken back
    offset       a group's offsets, the ends of queues, resets
    group        members of groups, groups' settings, and what brokers ask a member
    topic        topics of a broker
    admin        what operators and tests ask: topics, statistics, single messages, settings
    name_server  routes; keys, values and topics of a name server
"""
