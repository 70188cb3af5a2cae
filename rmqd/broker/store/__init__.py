"""The storage of messages, and their lookup.

Messages are in memory, or in a folder's SQLite database. As in RocketMQ, all messages are one log, and queues are
indexes into it.

    message_store  MessageStore: messages by queue and by commit log offset
    get_messages   the messages of a queue that one pull returns
    consume_queue  the index of one queue
    light_queues   the indexes of light message queues, over records of other topics
    record_log     the records, in memory
    data_dir       records and journal in a folder, written at the end of each turn
    database       opens and locks the folder's database, and explains its errors
    last_record    detects a damaged database
    retention      the messages to delete first
"""
