"""Writing to topics: the format `rocketmq` as a sink.

Options and columns are checked before the first row is sent. A task uses the producer of its process.

    writer        the sink, as Spark finds it
    sink_options  options and columns, checked before anything is sent
    outgoing      rows as messages
    row_place     the source message of a row
    bundles       groups rows into requests to the broker
    sending       an executor's producer
"""
