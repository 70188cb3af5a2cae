"""Reading topics: the format `rocketmq`, from its options to the record batches of a task.

The driver decides which offsets a batch has and cuts them into ranges; executors pull a range and make columns of it.

    options, source_values, bounds  the options, checked together; where a read starts and ends
    columns                         the columns that the source has
    batch_reader, stream_reader     bounded and unbounded reads, on the driver
    offsets, positions              a query's place in all queues; offsets for the words of options
    progress, admission             where the next batch ends; how much of a backlog it takes
    subscribed, gone_queues         which queues are read; those that are gone
    query_lag, short_errors         the lag of a query; errors as Spark shows them
    silent_brokers                  brokers that do not tell where their queues end
    group_offsets, retry_topics     commits to a group, where the checkpoint is; that mqadmin shows them
    narrowing, pushdown             what SQL conditions let a bounded read leave out
    range_plan                      RangePlan: which offsets to ask for next, of whom, and what is lost; for both
                                    pullers
    fetch, pull_connection          a range read on an executor: the blocking puller, its connection
    framed_reply                    where the records of a reply lie, and whether they fill it
    records, inner_batches          stored messages decoded into columns; batches taken apart
    property_arrays, slices, arrow  the parts of that: properties, parts of a buffer, record batches
"""
