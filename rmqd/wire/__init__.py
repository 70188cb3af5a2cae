"""Bytes to values and back: RocketMQ's remoting protocol without sockets, clocks or threads.

Nothing here waits or reads the time. Whatever the bytes, decoding ends with a value or with ProtocolError.
"""
