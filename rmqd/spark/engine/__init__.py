"""One group on Spark, seen from the driver: from its first heartbeat to its last commit.

The checkpoint owns the offsets, which are then committed to the brokers. A running query cannot be moved to other
offsets: if the group is moved, the query ends, and a new generation of the checkpoint begins. Calls into Spark block,
so they are made in threads.

    group_run                        GroupRun: join, start Spark, one query after the other, leave
    batch_gate                       pauses micro-batches, by a file that the query's source checks
    spark_parts                      the parts of a run; tests replace them
    presence                         Presence: the driver as a member of the group; start offsets; operators' requests
    generations, generation_note     the checkpoint to continue from; the note stored next to it
    moved_offsets                    finds offsets on the brokers that the query did not commit
    checkpoint                       reads the group's offsets from Spark's checkpoint
    running_query, spark_thread      a query and calls into Spark, for an event loop
    listener, figures, queue_places  Spark's progress; the group's snapshot; lag
    claim_store_watch                whether the store of `deduplicate` is available
    ordering                         from a configuration to the specification of a group
    foreground                       `rmqd spark run`: one group without a daemon
    archive_compaction               `rmqd spark compact`: merge small files of a Parquet sink
"""
