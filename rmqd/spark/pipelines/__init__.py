"""A group's pipeline: the rows of its topics, a function over them, and the sinks for the result.

A sink writes one micro-batch at a time, on the driver. After a crash it receives the last batch again.

    pipeline_query               the streaming query
    pipeline_source              the source of the rows, and the sink of a topic
    pipeline_sinks               sinks by format
    micro_batch                  the batch that a sink receives
    parquet_sink, parquet_batch  Parquet files that contain each row exactly once
    compaction, compaction_plan  merge small files into large ones, while the sink keeps writing
    compacted_batches            which batches are in compacted files
    postgresql                   rows of a PostgreSQL table, each batch exactly once
    delta_table                  rows of a Delta Lake table, each batch exactly once
    jdbc_table                   rows of a table of another database
    used_columns                 which columns of its source a pipeline uses
    pinned_schema                the schema of bodies, inferred once and stored
    pipeline_counts              message counts of a micro-batch, from Spark's progress
    lost_rows                    lost messages, reported in a row
"""
