"""A group that consumes lite topics (RIP-83, RocketMQ 5.5): some of those below one parent topic.

Members tell each broker which lite topics they want, and pop from it what comes for any of these. The broker keeps an
offset for each lite topic, and hands out nothing more of one while a member has messages of it. Line, workers,
settlement and receipts are those of a group that pops. Loaded only for such groups.

    division       LiteDivision: every member pops at every broker of the parent topic, once the brokers serve it
    assignment     LiteAssignment: one broker, from the subscription to the last acknowledgement
    subscribed     LiteSubscribed: which lite topics this member has told a broker, and where new ones start
    loop           LiteLoop: pops, and divides what comes by lite topic
    request        LitePopRequest: the request
    block          LiteBlock: what is handled together of a lite topic, and what follows it
    process_queue  LiteProcessQueue: a lite topic's messages go to handlers one batch after the other
"""
