"""Which queues this member has, and when it may begin with one that another member had.

`rebalance` divides the queues as every member does; ownership is about the moment of the hand-over. Two kinds exist.
In a group that is not orderly the next owner waits for the former one, for a limited time. In an orderly group it
waits for the queue's lock, however long. docs/proof/ownership.md has what brokers do, and the rules that follow.

    rebalance     Rebalance: a pass over all topics; takes queues and gives them up
    chosen         ChosenDivision: queues that a program assigned, without a group
    division      Division: a member's share of a topic by the allocate strategy; by the broker: `pop.division`
    member_list   MemberList: the group's client ids, as a broker that may just have restarted lists them
    notices       Notices: whether brokers tell of members that come and go
    absences      Absences: queues whose broker is down are kept for it
    rivals        Rivals: members of the group's other engine; which of both leaves
    ownership     QueueOwnership: hand-over between rmqd members of a group that is not orderly
    other_owners  OtherOwners: which queues members of other clients, such as Java, still have
    departures    Departures: which members are surely gone, by several brokers' lists
    queue_lock    QueueLock: an orderly group's locks, as Java's
    broker_locks  BrokerLocks: the requests for locks of one name
    broadcasting  the parts of a broadcasting group: every queue is everybody's, nothing is sent back
"""
