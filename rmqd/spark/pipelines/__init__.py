"""A group's pipeline: the rows of its topics, a function over them, and the sinks that the result goes to.

A sink takes a micro-batch at a time, on the driver. After a crash it is given the last one again.

    pipeline_query               the streaming query
    pipeline_source              the rows, and the sink of a topic
    pipeline_sinks               sinks by format
    micro_batch                  what every sink is told of a batch
    parquet_sink, parquet_batch  files of Parquet that hold each row exactly once
    compaction, compaction_plan  large files of these small ones, beside the sink
    compacted_batches            the note of which batches are in such a file
    postgresql                   rows of a table of PostgreSQL, each batch exactly once
    delta_table                  rows of a table of Delta Lake, each batch exactly once
    jdbc_table                   rows of a table of another database
    used_columns                 which columns of its source a pipeline uses
    pinned_schema                the schema of bodies that is inferred once, and kept
    pipeline_counts              what a micro-batch has read, by Spark's word
    lost_rows                    what its tasks have lost, as a row of their own
"""
