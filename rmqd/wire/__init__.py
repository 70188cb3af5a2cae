"""The codec of RocketMQ's remoting protocol: from bytes to values and back, without sockets, clocks or threads.

Decoding arbitrary bytes returns a value or raises ProtocolError, with memory in proportion to the bytes. `command` cuts
frames out of the TCP stream and decodes them. A command's code decides which class reads its ext fields (`headers`) and
its body (`bodies`, or `messages` for stored messages). Recorded frames in tests/wire/golden prove the encoding.
"""
