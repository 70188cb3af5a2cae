"""RocketMQ's remoting protocol, from bytes to values and back, without sockets, clocks or threads.

Decoding any bytes ends with a value or with ProtocolError, and takes memory in proportion to the bytes. `command` cuts
frames out of the stream and decodes them. The command's code decides how its ext fields (headers) and its body (bodies,
or the records of messages) are read. Recorded frames in tests/wire/golden prove the encoding.
"""
