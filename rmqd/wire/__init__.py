"""Bytes to values and back: RocketMQ's remoting protocol without sockets, clocks or threads.

Nothing here waits or reads the time. Whatever the bytes, decoding ends with a value or with ProtocolError, and takes
memory in proportion to them. A frame is cut out of the stream, its command is decoded, and what the command's code says
is then read from the ext fields (headers) and the body (bodies, or the records of messages). What a broker sees is
proven by recorded frames: tests/wire/golden.

    frame            cuts the byte stream into frames
    command          RemotingCommand: one request or reply, with a header in JSON or in binary form
    alike_headers    replies to pulls decoded by an earlier one's header, which differs in numbers alone
    binary_header    the binary form of a command's header
    headers          ext fields with names and types: a dataclass for each request and reply
    bodies           bodies in JSON: a dataclass for each
    messages         stored messages: records, their bodies and properties, decoded and encoded
    loose_json       JSON as fastjson writes it
    fields           fields of headers and bodies: names, accepted values, and how an error says what is not
    limits           how large routes and resets may be
    java_properties  settings in lines of `name=value`
    message_queue    MessageQueue: the name of a queue
    identity         Identity: the complete name of what a stored record is about
    topics           names of topics and groups: rules, retry and dead letter topics, namespaces
    topic_kinds      kinds of topics: the marks by which brokers tell them, and which of them rmqd knows
    namespace        texts and values without a namespace
    filter           subscriptions from the expressions that users write
    pop              the handles of popped messages, and what a pop's reply says about its queues
    lite             lite topics: the names of their queues, and what a pop's reply says about their messages
    version          the names of versions
    recall           the handle by which a timer message is taken back
    schema_registry  what clients of RocketMQ's schema registry write in front of an Avro record
    acl              signatures of requests
    trace            message trace: the records that say who sent and handled a message
"""
