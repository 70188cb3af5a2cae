"""Groups that consume lite topics (RIP-83, RocketMQ 5.5): selected lite topics of one parent topic.

Members subscribe to lite topics at each broker, and pop messages of all their lite topics with one request. The broker
keeps an offset for each lite topic. While a member has messages of a lite topic, the broker returns no others of it.
The line, the workers, the settlement and the receipts are shared with POP groups. Only such groups load this package.

    division       LiteDivision: every member pops at every broker of the parent topic that serves lite topics
    assignment     LiteAssignment: one broker, from the subscription to the last acknowledgement
    subscribed     LiteSubscribed: this member's subscription at a broker, and start offsets of new lite topics
    loop           LiteLoop: pops, and splits responses by lite topic
    request        LitePopRequest: the request
    block          LiteBlock: one batch of a lite topic, and the messages behind it
    process_queue  LiteProcessQueue: hands out a lite topic's messages batch by batch
"""
