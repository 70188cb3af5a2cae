"""Pull a topic's messages and discard them, as fast as broker and sockets allow.

It has one connection and one long-polling pull in flight for each queue. Requests are encoded in advance, except for
the offset, and bodies are not decoded. A client's additional time is its own cost.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import ssl
import struct
import sys
from dataclasses import dataclass

from bench import process_figures
from tests import certificates

PULL_MESSAGE = 11
GET_ROUTE_INFO_BY_TOPIC = 105
FOUND = 0
NOT_FOUND = 19
CLIENT_VERSION = 475  # 5.3.1: routes in strict JSON
SUSPEND_AND_SUBSCRIPTION = 2 | 4  # a long poll with its subscription, so that no heartbeat is needed
SUSPEND_MILLISECONDS = 15_000
OFFSET_DIGITS = 19  # a zero-padded offset keeps the request's length the same
BUFFER_BYTES = 8 << 20  # more than eight of the largest responses of the benchmark's brokers

PREFIX = struct.Struct(">II")
CODE = re.compile(rb'"code":(\d+)')
OPAQUE = re.compile(rb'"opaque":(\d+)')
NEXT_OFFSET = re.compile(rb'"nextBeginOffset":"(\d+)"')


class RawPullError(Exception):
    """The broker or the name server sent an unexpected response."""


def encode(code: int, opaque: int, fields: dict[str, str]) -> bytes:
    """Return a request frame with a JSON header and no body."""
    header = {"code": code, "language": "PYTHON", "version": CLIENT_VERSION, "opaque": opaque, "flag": 0}
    text = json.dumps({**header, "extFields": fields}, separators=(",", ":")).encode()
    return PREFIX.pack(4 + len(text), len(text)) + text


def connect(address: str, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Connect to `host:port`, with TLS if `tls` is given."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection if tls is None else tls.wrap_socket(connection, server_hostname=host)


def receive_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Receive exactly `size_bytes` bytes. Raises RawPullError if the peer closes the connection first."""
    data = bytearray()
    while len(data) < size_bytes:
        part = connection.recv(size_bytes - len(data))
        if not part:
            raise RawPullError("the connection was closed in the middle of a response")
        data += part
    return bytes(data)


def find_queues(nameserver: str, topic: str, tls: ssl.SSLContext | None = None) -> dict[str, int]:
    """Return the masters of the topic, each with its number of readable queues."""
    with connect(nameserver, tls) as connection:
        connection.sendall(encode(GET_ROUTE_INFO_BY_TOPIC, 1, {"topic": topic, "acceptStandardJsonOnly": "true"}))
        length, header_length = PREFIX.unpack(receive_exactly(connection, PREFIX.size))
        frame = receive_exactly(connection, length - 4)
    header, body = frame[: header_length & 0xFFFFFF], frame[header_length & 0xFFFFFF :]
    if json.loads(header)["code"] != FOUND:
        raise RawPullError(f"{nameserver} has no route of {topic}: {header.decode()}")
    route = json.loads(body)
    masters = {broker["brokerName"]: broker["brokerAddrs"]["0"] for broker in route["brokerDatas"]}
    return {masters[queue["brokerName"]]: int(queue["readQueueNums"]) for queue in route["queueDatas"]}


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The parts of a pull request before and after its offset. Its opaque is the queue's number."""

    head: bytes
    tail: bytes

    @classmethod
    def of(cls, group: str, topic: str, queue: int, pull_batch: int) -> PullRequest:
        blank = "0" * OFFSET_DIGITS
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": blank,
            "maxMsgNums": str(pull_batch),
            "sysFlag": str(SUSPEND_AND_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MILLISECONDS),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
            "maxMsgBytes": str(64 << 20),
        }
        head, _, tail = encode(PULL_MESSAGE, queue, fields).partition(blank.encode())
        return cls(head, tail)

    def at(self, offset: int) -> bytes:
        """Return the request for this offset."""
        return b"%b%019d%b" % (self.head, offset, self.tail)


class Drain:
    """One drain of a topic on one broker, from its first offset."""

    def __init__(self, connection: socket.socket, requests: list[PullRequest]) -> None:
        self._connection = connection
        self._requests = requests
        self._offsets = [0] * len(requests)
        self.seen = 0
        self.first: process_figures.Moment | None = None

    def run(self, messages: int) -> process_figures.Moment:
        """Pull `messages` messages. Returns the moment of the last one. Raises RawPullError for a bad response."""
        self._connection.sendall(b"".join(request.at(0) for request in self._requests))
        buffer = bytearray(BUFFER_BYTES)
        filled = 0
        with memoryview(buffer) as view:
            while self.seen < messages:
                received = self._connection.recv_into(view[filled:])
                if not received:
                    raise RawPullError("the broker closed the connection")
                filled += received
                taken, answers = self._take(buffer, filled)
                if taken:
                    if answers:
                        self._connection.sendall(b"".join(answers))
                    rest = filled - taken
                    view[:rest] = bytes(view[taken:filled])
                    filled = rest
        return process_figures.now()

    def _take(self, buffer: bytearray, filled: int) -> tuple[int, list[bytes]]:
        """Return the bytes of complete frames in the buffer, and the next request of each answered queue."""
        start = 0
        answers: list[bytes] = []
        while filled - start >= PREFIX.size:
            length, header_length = PREFIX.unpack_from(buffer, start)
            end = start + 4 + length
            if end > filled:
                break
            answers.append(self._next_request(bytes(buffer[start + 8 : start + 8 + (header_length & 0xFFFFFF)])))
            start = end
        return start, answers

    def _next_request(self, header: bytes) -> bytes:
        code, opaque, offset = CODE.search(header), OPAQUE.search(header), NEXT_OFFSET.search(header)
        if code is None or opaque is None or offset is None or int(code[1]) not in (FOUND, NOT_FOUND):
            raise RawPullError(f"unexpected response: {header.decode(errors='replace')}")
        queue, next_offset = int(opaque[1]), int(offset[1])
        if self.first is None and next_offset > 0:
            self.first = process_figures.now()
        self.seen += next_offset - self._offsets[queue]
        self._offsets[queue] = next_offset
        return self._requests[queue].at(next_offset)


def argument_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser for the contenders without a group. All have the same options."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    parser.add_argument("--namesrv", required=True, help="host:port of the name server")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True, help="the consumer group to pull for; nothing is committed")
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--pull-batch", type=int, default=32)
    return parser


def main() -> int:
    """Drain the topic, and print one line of figures."""
    parser = argument_parser("raw_puller", __doc__)
    parser.add_argument("--tls", action="store_true", help="use the certificates of tests/certificates")
    options = parser.parse_args()
    tls = certificates.client_context() if options.tls else None
    masters = find_queues(options.namesrv, options.topic, tls)
    if len(masters) != 1:
        parser.error(f"the topic is on {len(masters)} brokers; expected one")
    address, queues = masters.popitem()
    requests = [PullRequest.of(options.group, options.topic, queue, options.pull_batch) for queue in range(queues)]
    with connect(address, tls) as connection:
        drain = Drain(connection, requests)
        last = drain.run(options.messages)
    if drain.first is None:
        raise RawPullError("no message arrived")
    print(process_figures.line("raw", drain.seen, drain.first, drain.first, last, 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
