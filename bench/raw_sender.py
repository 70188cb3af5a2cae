"""Send messages with frames encoded in advance, as fast as broker and sockets allow.

It has one connection, sends several requests at once to the queues in turn, and checks only the response codes. A
producer's additional time is its own cost.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import socket
import sys

from bench import process_figures
from bench.raw_puller import BUFFER_BYTES, PREFIX, connect, encode, find_queues

SEND_MESSAGE_V2 = 310
STORED = re.compile(rb'"code":0[,}]')


class RawSendError(Exception):
    """The broker did not store a message."""


def frame(topic: str, queue: int, body: bytes, default_topic: str = "TBW102") -> bytes:
    """Return a request frame that stores a message without tag and id."""
    fields = {
        "a": "raw_sender",
        "b": topic,
        "c": default_topic,
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": "0",
        "h": "0",
    }
    head = encode(SEND_MESSAGE_V2, queue, fields | {"i": "", "j": "0", "k": "false", "m": "false"})
    length, header_length = PREFIX.unpack_from(head)
    return PREFIX.pack(length + len(body), header_length) + head[PREFIX.size :] + body


def send(connection: socket.socket, frames: list[bytes], messages: int, inflight: int) -> None:
    """Send `messages` messages. Raises RawSendError."""
    turns = itertools.cycle(frames)
    asked = min(inflight, messages)
    connection.sendall(b"".join(itertools.islice(turns, asked)))
    stored = filled = 0
    buffer = bytearray(BUFFER_BYTES)
    with memoryview(buffer) as view:
        while stored < messages:
            received = connection.recv_into(view[filled:])
            if not received:
                raise RawSendError("the broker closed the connection")
            filled += received
            start, answers = 0, 0
            while filled - start >= PREFIX.size:
                length, header_length = PREFIX.unpack_from(buffer, start)
                end = start + 4 + length
                if end > filled:
                    break
                if STORED.search(buffer, start, end) is None:
                    raise RawSendError(bytes(buffer[start + 8 : start + 8 + header_length]).decode(errors="replace"))
                start, answers = end, answers + 1
            stored += answers
            more = min(answers, messages - asked)
            asked += more
            if more:
                connection.sendall(b"".join(itertools.islice(turns, more)))
            rest = filled - start
            view[:rest] = bytes(view[start:filled])
            filled = rest


def main() -> int:
    """Send messages, and print one line of figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.raw_sender", description=__doc__)
    parser.add_argument("--namesrv", required=True, help="host:port of the name server")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--bytes", type=int, default=1024, help="size of a body (default 1024)")
    parser.add_argument("--inflight", type=int, default=64, help="requests in flight (default 64)")
    options = parser.parse_args()
    ((address, queues),) = find_queues(options.namesrv, options.topic).items()
    frames = [frame(options.topic, queue, os.urandom(options.bytes)) for queue in range(queues)]
    with connect(address) as connection:
        first = process_figures.now()
        send(connection, frames, options.messages, options.inflight)
        last = process_figures.now()
    print(process_figures.line("raw", options.messages, first, first, last, 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
