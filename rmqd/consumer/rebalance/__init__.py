"""Assigns queues to this member, and decides when it may start with a queue that another member owned.

`rebalance` divides the queues as every member does; ownership governs the moment of the hand-over. There are two kinds.
In a group that is not orderly the next owner waits for the previous one, for a limited time. In an orderly group it
waits for the queue's lock, without a limit. docs/proof/ownership.md describes the brokers' part and the rules.

    rebalance     Rebalance: a pass over all topics; acquires and releases queues
    chosen        ChosenDivision: queues that a program assigned, without a group
    division      Division: a member's share of a topic by the allocate strategy; by the broker: `pop.division`
    member_list   MemberList: the group's client ids, checked after a broker's restart
    notices       Notices: whether brokers notify members of joins and leaves
    absences      Absences: queues are kept while their broker is down
    rivals        Rivals: members of the group's other engine; which of the two leaves
    ownership     QueueOwnership: hand-over between rmqd members of a group that is not orderly
    other_owners  OtherOwners: which queues members of other clients, such as Java, still own
    departures    Departures: which members have certainly left, by the lists of several brokers
    queue_lock    QueueLock: an orderly group's locks, as in Java
    broker_locks  BrokerLocks: the requests for locks of one name
    broadcasting  the parts of a broadcasting group: every member consumes every queue, nothing is sent back
"""
