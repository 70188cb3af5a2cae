"""The local engine: one consumer group in this process, from its rebalance to its commits.

A group is a PushConsumer. `assembly` chooses the group's parts by consume mode and message model and collects them in
one GroupContext. Each part receives the GroupContext and the objects that it owns. The packages form layers: a lower
layer never imports a higher one (`FLOORS` in tests/test_architecture.py). The engine does not know the configuration
file or other groups, and the only files that it writes are a broadcasting group's offsets. docs/architecture.md follows
a message through the tasks; docs/proof/ownership.md has the rules for commits.

    push_consumer  PushConsumer: starts the handler, joins the group, runs its tasks, drains, leaves
    assembly       chooses the parts for a group's mode and model
    context        GroupContext: the objects that the parts share
    services       protocols of the parts that exist in several kinds: service, retries, offset store, ownership
    contract       Consumer: the daemon's interface to a group on any engine
    options        ConsumerOptions: the settings of one group; no defaults
    announcing     sends a new subscription to the brokers before the first pull with it
    live_change    applies changed options to a running group
    pauses         the scopes that an operator paused
    circuit        Circuit: decides whether the handler is called, by the results of its calls
    hooks          plugins that run around every batch
    allocate       the allocate strategies: which member gets which queue
    group_status   the group's snapshot: state, queues, counters, readiness
    stats          counters, problems, and the plain values of snapshots
    cache          the process queue, its thresholds, the rate limit
    handling       workers that call the handler and settle its batches
    founding       whether the group is new, and its start offsets
    assigned       Assignment: a queue of this member, pulled or popped, as the rest of the group sees it
    pull           one owned queue: acquisition, pulls, changes of its offset, release
    pop            groups that pop: the broker hands out single messages
    lite           groups that pop the messages of named lite topics
    rebalance      members, ownership of queues, locks
    offsets        offset stores, and when offsets are committed
    health         why queues and groups make no progress, or disagree
    admin          requests of operators that brokers forward
    dead_letters   commands on a group's dead letters; not part of a running group
"""
