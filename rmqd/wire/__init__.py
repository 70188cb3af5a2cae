"""The codec of RocketMQ's remoting protocol: from bytes to values and back, without sockets, clocks or threads.

Decoding arbitrary bytes returns a value or raises ProtocolError, and takes memory in proportion to the number of bytes.
`command` splits the TCP stream into frames and decodes the frames. The code of a command selects the class that reads
the ext fields (`headers`) and the class that reads the body (`bodies`, or `messages` for stored messages). Recorded
frames in tests/wire/golden prove the encoding.
"""
