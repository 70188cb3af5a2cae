"""Where a group's offsets are stored, and when they are committed.

A clustering group's are on the brokers, where other members and operators change them too; a broadcasting group's are
in a local file that only this process writes. Both are an OffsetStore (`consumer.services`). One commit of a queue is
under way at a time, and none goes back without an operator: docs/proof/ownership.md.

    persistence                     OffsetPersistence: a round of commits every few seconds, broker by broker, and of
                                    questions how far behind the group is
    broker_store                    RemoteBrokerOffsetStore: commits in turn, by epoch, upward
    offset_watch                    OffsetWatch: what others do to the stored offset in the first seconds of an
                                    ownership
    unheard_commits                 UnheardCommits: commits without an answer, which may still replace later ones
    pull_commits                    PullCommits: commits that pulls carry
    first_commits                   FirstCommits: the first commit of a topic on a broker goes alone
    founding_by_brokers             BrokerFounding: founds a clustering group, beside others that may do the same
    own_store                       OwnOffsetStore: in a store of the user's own, and on the brokers for tools
    local_file_store, offsets_file  a broadcasting group's offsets, and the file in Java's shape
    founding_by_file                FileFounding: a group without a file is new
    process_lock, private_files     the folder of local state: one process at a time; modes of files
"""
