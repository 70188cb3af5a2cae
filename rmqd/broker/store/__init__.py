"""The messages: where they are kept, and how they are found again.

In memory, or in a folder's SQLite database. All messages are one log, as in RocketMQ; queues are indexes into it.

    message_store  MessageStore: messages by queue and by commit log offset
    get_messages   what one pull gets of a queue
    consume_queue  the index of one queue
    light_queues   the indexes of light message queues, over records of other topics
    record_log     the records, in memory
    data_dir       records and journal in a folder, written at the end of each turn
    database       the folder's database: opened, locked, and why it cannot be used
    last_record    a damaged database is noticed
    retention      which messages are given up
"""
