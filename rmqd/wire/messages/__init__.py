"""Stored messages: from the bytes of a reply to what a handler sees, and back to records.

A reply is decoded in two steps. `decode` finds the records, checks each one's frame and CRC, and makes a Message of it
that only knows where the record lies; all else is read when somebody asks. `opening` then decompresses bodies and takes
batches apart, to size limits, and in a thread where there is much to do. What cannot be trusted is set aside as a
CorruptMessage and never lost silently.

    decode       finds and checks the records of a reply
    record       Record: the fields of one stored message, read from its bytes
    message      Message: a record as handlers see it; MessageBlock: what one reply brought
    once         what `message.once` calls
    unreadable   a record that cannot be decoded, as a message
    opening      opens compressed bodies and batches, as far as there is room
    compression  ZLIB, LZ4 and ZSTD, to a bounded size
    light_queue  the offsets of light message queues, over messages of other topics
    inner_batch  batches that a broker stores as one record
    pull_walk    how far the offsets of a reply agree with its header
    encode       writes batches to send, and records as a broker stores them
    properties   the string of a message's properties, and RocketMQ's names in it
    sys_flag     the bits of sysFlag
    message_id   offset ids and unique keys
"""
