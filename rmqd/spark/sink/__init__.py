"""Writing to topics: the format `rocketmq` as a sink.

Options and columns are checked before the first row is sent. A task sends by its process's producer.

    writer        the sink, as Spark finds it
    sink_options  options and columns, checked before anything is sent
    outgoing      rows as messages
    row_place     the message that a row is of
    bundles       which rows go to the broker in one request
    sending       an executor's producer
"""
