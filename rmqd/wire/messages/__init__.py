"""Stored messages: from the bytes of a response to the handler's Message, and back to records.

A response is decoded in two steps. `decode` finds the records, checks the frame and CRC of each, and creates a Message
that knows only the position of its record; the fields are read on access. `opening` then decompresses bodies and splits
batches, within size limits, and in a thread if there is much to do. Untrustworthy records become CorruptMessages and
are never lost silently.

    decode       finds and checks the records of a response
    record       Record: the fields of one stored message, read from its bytes
    message      Message: a record as handlers see it; MessageBlock: the messages of one response
    once         the interface behind `message.once`
    unreadable   a record that cannot be decoded, as a message
    opening      opens compressed bodies and batches while there is room
    compression  ZLIB, LZ4 and ZSTD, to a bounded size
    light_queue  the offsets of light message queues, over messages of other topics
    inner_batch  batches that a broker stores as one record
    pull_walk    how far the offsets of a response agree with its header
    encode       writes batches to send, and records as a broker stores them
    properties   the string of a message's properties, and RocketMQ's names in it
    sys_flag     the bits of sysFlag
    message_id   offset ids and unique keys
"""
