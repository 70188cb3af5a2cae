"""One group on Spark as the driver sees it: from its first heartbeat to its last commit.

The checkpoint owns the offsets, and brokers are told of them. A query cannot be moved: where somebody moves the group,
the query ends and a new generation of the checkpoint begins. Calls into Spark block, so they are made in threads.

    group_run                        GroupRun: join, start Spark, one query after the other, leave
    batch_gate                       when the query may begin a micro-batch: pauses, and the file that tells its source
    spark_parts                      what a run is made of; tests give it other parts
    presence                         Presence: the driver as a member of the group; founding; answers to operators
    generations, generation_note     which checkpoint to go on from; what is kept beside it
    moved_offsets                    which offsets on the brokers are somebody else's
    checkpoint                       what Spark's checkpoint says of the group's place
    running_query, spark_thread      a query and Spark's calls, for an event loop
    listener, figures, queue_places  Spark's progress; the group's snapshot; lag
    claim_store_watch                whether the store of `deduplicate` is there
    ordering                         from a configuration to a group's order
    foreground                       `rmqd spark run`: one group without a daemon
    archive_compaction               `rmqd spark compact`: large files of a Parquet sink's small ones
"""
