"""The stores of a group's offsets, and the time of commits.

A clustering group's offsets are on the brokers, where other members and operators change them too. A broadcasting
group's offsets are in a local file that only this process writes. Both are an OffsetStore (`consumer.services`). One
commit of a queue runs at a time, and only an operator lowers an offset: docs/proof/ownership.md.

    persistence                     OffsetPersistence: periodic rounds of commits and lag requests for each broker
    broker_store                    RemoteBrokerOffsetStore: serialized commits, by epoch, upward
    offset_watch                    OffsetWatch: changes of the stored offset by other clients, in the first seconds of
                                    an ownership
    unheard_commits                 UnheardCommits: unanswered commits, which may still replace later ones
    pull_commits                    PullCommits: commits carried by pulls
    first_commits                   FirstCommits: the first commit of a topic on a broker is sent alone
    founding_by_brokers             BrokerFounding: stores a new clustering group's start offsets
    own_store                       OwnOffsetStore: in a custom store, and on the brokers for tools
    local_file_store, offsets_file  a broadcasting group's offsets, and the file in Java's format
    founding_by_file                FileFounding: a broadcasting group without a file is new
    process_lock, private_files     the folder of local state: one process at a time; modes of files
"""
