"""FaultProxy: a TCP proxy in front of a broker or name server that cuts connections at a test's request."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self

from tests.rocketmq.spec import HOST, free_port


class FaultProxy:
    """Passes bytes between clients and `target`; its own address is `address`.

    `rewrites` replaces text of equal length in the target's responses, so that a name server returns another proxy's
    address instead of the broker's.
    """

    def __init__(self, target: str, rewrites: dict[str, str] | None = None) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._rewrites = {old.encode(): new.encode() for old, new in (rewrites or {}).items()}
        assert all(len(old) == len(new) for old, new in self._rewrites.items())
        # five digits, like the target's port, so that both addresses have the same length
        self._listener = socket.create_server((HOST, free_port(set(), (0,))))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self._lines: set[Line] = set()
        self._cut_above_bytes: int | None = None
        self._lose_above_bytes: int | None = None
        self.cuts = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True, name=f"proxy {self.address}").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept(), which close() alone does not
        self._listener.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Close every connection now."""
        for line in list(self._lines):
            line.close()

    def cut_inside_next_frame(self, above_bytes: int = 0) -> None:
        """Pass half of the target's next frame that is larger than this, then close that connection."""
        self._cut_above_bytes = above_bytes

    def lose_next_frame(self, above_bytes: int = 0) -> None:
        """Drop the target's next frame that is larger than this; the connection stays open."""
        self._lose_above_bytes = above_bytes

    @property
    def armed(self) -> bool:
        """Whether a requested cut or loss is still due."""
        return self._cut_above_bytes is not None or self._lose_above_bytes is not None

    def passes(self, frame: bytes) -> bytes | None:
        """Return the bytes to send to the client for this frame; None to send half of it and close."""
        if self._cut_above_bytes is not None and len(frame) > self._cut_above_bytes:
            self._cut_above_bytes = None
            self.cuts += 1
            return None
        if self._lose_above_bytes is not None and len(frame) > self._lose_above_bytes:
            self._lose_above_bytes = None
            return b""
        for old, new in self._rewrites.items():
            frame = frame.replace(old, new)
        return frame

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                target = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            target.settimeout(None)
            line = Line(self, client, target)
            self._lines.add(line)
            for pump in (line.pump_requests, line.pump_frames):
                threading.Thread(target=self._run, args=(line, pump), daemon=True).start()

    def _run(self, line: Line, pump: object) -> None:
        assert callable(pump)
        with contextlib.suppress(OSError):
            pump()
        line.close()
        self._lines.discard(line)


class Line:
    """A client's connection and its connection to the target."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, target: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._target = target

    def pump_requests(self) -> None:
        """Pass the client's bytes to the target, until either end closes."""
        while data := self._client.recv(1 << 16):
            self._target.sendall(data)

    def pump_frames(self) -> None:
        """Pass the target's frames to the client, one by one."""
        with self._target.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = head + stream.read(struct.unpack(">I", head)[0])
                passed = self._proxy.passes(frame)
                if passed is None:
                    self._client.sendall(frame[: len(frame) // 2])
                    return
                self._client.sendall(passed)

    def close(self) -> None:
        """Close both ends."""
        for end in (self._client, self._target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
