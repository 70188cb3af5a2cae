"""BadLine passes frames unchanged, except for the share that it cuts, delays or resets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.nightly.campaigns import bad_line
from tests.nightly.campaigns.bad_line import CUT, DELAY, RESET, BadLine
from tests.rocketmq.spec import HOST

FRAME = struct.pack(">I", 1000) + bytes(1000)


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back all data."""
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=_echo, args=(listener,), daemon=True)
        thread.start()
        yield f"{HOST}:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _echo(listener: socket.socket) -> None:
    while True:
        try:
            link, _ = listener.accept()
        except OSError:
            return
        with link:
            try:
                while data := link.recv(1 << 16):
                    link.sendall(data)
            except OSError:
                pass


def ask(address: str) -> bytes:
    """Send a frame, and return its echo, which ends with the connection. Raises ConnectionResetError."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.sendall(FRAME)
        data = b""
        while len(data) < len(FRAME) and (part := link.recv(1 << 16)):
            data += part
        return data


def test_frames_pass_unchanged_without_damage(echo: str) -> None:
    with BadLine(echo, 1) as line:
        assert [ask(line.address) for _ in range(5)] == [FRAME] * 5
        assert line.frames == 10
        assert not line.damaged


def test_every_kind_of_damage_occurs(echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame arrives completely, perhaps late, or half, or not at all, or the connection is reset."""
    monkeypatch.setattr(bad_line, "DELAY_SECONDS", (0.0, 0.01))
    outcomes = set()
    with BadLine(echo, 3) as line:
        line.share = 0.5
        for _ in range(100):
            try:
                outcomes.add(len(ask(line.address)))
            except ConnectionResetError:
                outcomes.add(-1)
        line.share = 0.0
        assert ask(line.address) == FRAME

    assert set(line.damaged) == {CUT, DELAY, RESET}
    assert outcomes == {-1, 0, len(FRAME) // 2, len(FRAME)}
