"""Reading topics: the format `rocketmq`, from its options to the record batches of a task.

The driver chooses the offsets of a batch and splits them into ranges; executors pull a range and decode it to columns.

    options, source_values, bounds  the options, checked together; start and end of a read
    columns                         the columns of the source
    batch_reader, stream_reader     bounded and unbounded reads, on the driver
    offsets, positions              a query's offsets; offsets for the values of options
    progress, admission             the end of the next batch; its share of the backlog
    subscribed, gone_queues         the queues of a query; queues that disappeared
    query_lag, short_errors         the lag of a query; errors as Spark shows them
    silent_brokers                  brokers that do not return the ends of their queues
    group_offsets, retry_topics     commits to the consumer group; makes them visible in mqadmin
    narrowing, pushdown             messages that a bounded read can skip because of SQL conditions
    range_plan                      RangePlan: the next pulls and replica of a range, and its losses; for both pullers
    fetch, pull_connection          reads a range on an executor: the blocking puller and its connection
    framed_reply                    the positions of the records in a response
    records, inner_batches          decodes stored messages to columns; unpacks batches
    property_arrays, slices, arrow  helpers for decoding: properties, slices of a buffer, record batches
"""
