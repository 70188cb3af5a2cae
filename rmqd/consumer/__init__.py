"""The local engine: one consumer group in this process, from its rebalance to its commits.

A group is a PushConsumer. `assembly` chooses its parts by consume mode and message model and puts them into one
GroupContext; a part gets that, and what it owns. Folders stand on floors: those below know nothing of those above
(`FLOORS` in tests/test_architecture.py). The engine knows no configuration, no files but a broadcasting group's
offsets, and no other group. docs/architecture.md has the way of a message and the tasks; docs/proof/ownership.md the
rules of commits.

    push_consumer  PushConsumer: starts the handler, joins the group, runs its tasks, drains, leaves
    assembly       which parts serve a group's mode and model
    context        GroupContext: what the parts share
    services       what those parts must do that exist in several kinds: service, ways back, offset store, ownership
    contract       Consumer: what the daemon expects of a group on any engine
    options        ConsumerOptions: what the group is told; no defaults
    announcing     brokers know a subscription before anything is pulled by it
    live_change    other options for a group that runs
    pauses         what an operator paused
    circuit        Circuit: whether the handler is called, by how its calls end
    hooks          code of others around every batch
    allocate       the allocate strategies: who gets which queue
    group_status   the group's snapshot: state, queues, counters, readiness
    stats          counters, problems, and the plain values that snapshots are made of
    cache          the process queue, its thresholds, the rate limit
    handling       workers call the handler; what becomes of a batch is settled
    founding       whether the group is new, and where it begins
    assigned       Assignment: a queue that this member has, as the rest of the group sees it, pulled or popped
    pull           one owned queue: take-over, pulls, moves of its offset, giving up
    pop            a group whose brokers hand messages out one by one
    lite           a group whose brokers hand out messages of the lite topics that it names
    rebalance      members, ownership of queues, locks
    offsets        where offsets are stored, and when they are committed
    health         why queues and groups stand still, or disagree
    admin          what operators ask through brokers
    dead_letters   what commands do with a group's dead letters; no part of a group that runs
"""
