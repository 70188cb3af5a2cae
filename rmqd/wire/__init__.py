"""RocketMQ's remoting protocol, from bytes to values and back, without sockets, clocks or threads.

Decoding any bytes ends with a value or with ProtocolError, and takes memory in proportion to the bytes. `frame` cuts a
frame out of the stream, and `command` decodes it. The command's code decides how its ext fields (headers) and its body
(bodies, or the records of messages) are read. Recorded frames in tests/wire/golden prove the encoding.

    frame            cuts the byte stream into frames
    command          RemotingCommand: one request or response, with a header in JSON or in binary form
    alike_headers    decodes pull responses with the header of an earlier one, if only numbers differ
    binary_header    the binary form of a command's header
    headers          ext fields with names and types: a dataclass for each request and response
    bodies           bodies in JSON: a dataclass for each
    messages         stored messages: records, their bodies and properties, decoded and encoded
    loose_json       JSON as fastjson writes it
    fields           fields of headers and bodies: names, types, and errors about wrong values
    limits           how large routes and resets may be
    java_properties  settings in lines of `name=value`
    message_queue    MessageQueue: the name of a queue
    identity         Identity: the complete name of a stored record's group, topic or queue
    topics           names of topics and groups: rules, retry and dead letter topics, namespaces
    topic_kinds      kinds of topics, by their attributes
    namespace        removes the namespace from texts and values
    filter           subscriptions from the expressions that users write
    pop              the handles of popped messages, and the queue information in pop responses
    lite             lite topics: the names of their queues, and the delivery counts in pop responses
    version          the names of versions
    recall           the handle that recalls a timer message
    schema_registry  the prefix that clients of RocketMQ's schema registry write before an Avro record
    acl              signatures of requests
    trace            message trace: records of sent and handled messages
"""
