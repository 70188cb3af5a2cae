"""The raw puller with a broker made of a thread and a socket."""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

import pytest

from bench.raw_puller import Drain, PullRequest, RawPullError, receive_exactly

QUEUES = 2
IN_EACH_QUEUE = 70
PULL_BATCH = 32


class ScriptedBroker(threading.Thread):
    """Answers pulls on one connection like a broker with QUEUES queues, a few bytes at a time."""

    def __init__(self, connection: socket.socket, code: int = 0) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.code = code
        self.pulled: list[tuple[int, int]] = []

    def run(self) -> None:
        try:
            while True:
                self.answer(self.read_request())
        except (RawPullError, OSError):
            self.connection.close()

    def read_request(self) -> dict[str, Any]:
        length, header_length = struct.unpack(">II", receive_exactly(self.connection, 8))
        assert length == header_length + 4
        header: dict[str, Any] = json.loads(receive_exactly(self.connection, header_length))
        return header

    def answer(self, request: dict[str, Any]) -> None:
        fields = request["extFields"]
        offset = int(fields["queueOffset"])
        self.pulled.append((int(fields["queueId"]), offset))
        next_offset = min(offset + int(fields["maxMsgNums"]), IN_EACH_QUEUE)
        if next_offset == offset:
            return  # a long poll is held
        header = json.dumps(
            {
                "code": self.code,
                "extFields": {"nextBeginOffset": str(next_offset), "minOffset": "0"},
                "flag": 1,
                "opaque": request["opaque"],
            },
            separators=(",", ":"),
        ).encode()
        frame = struct.pack(">II", 4 + len(header) + 500, len(header)) + header + bytes(500)
        for start in range(0, len(frame), 7):
            self.connection.sendall(frame[start : start + 7])


@pytest.fixture
def pair() -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def requests() -> list[PullRequest]:
    return [PullRequest.of("group", "topic", queue, PULL_BATCH) for queue in range(QUEUES)]


def test_every_message_is_pulled_once(pair: tuple[socket.socket, socket.socket]) -> None:
    broker = ScriptedBroker(pair[1])
    broker.start()
    drain = Drain(pair[0], requests())
    last = drain.run(QUEUES * IN_EACH_QUEUE)
    assert drain.seen == QUEUES * IN_EACH_QUEUE
    assert drain.first is not None
    assert drain.first.monotonic_seconds <= last.monotonic_seconds
    for queue in range(QUEUES):
        assert [offset for number, offset in broker.pulled if number == queue][:3] == [0, 32, 64]


def test_a_response_with_another_code_ends_the_drain(pair: tuple[socket.socket, socket.socket]) -> None:
    ScriptedBroker(pair[1], code=24).start()
    with pytest.raises(RawPullError, match='"code":24'):
        Drain(pair[0], requests()).run(1)


def test_a_closed_connection_ends_the_drain(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(RawPullError, match="closed"):
        Drain(pair[0], requests()).run(1)
