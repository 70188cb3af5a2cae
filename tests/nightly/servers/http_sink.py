"""An HTTP server that records requests and fails randomly: `python -m tests.nightly.servers.http_sink PORT FILE`."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers.http_peer import CLOSE, HANG, OK, RESET, Answer, HttpPeer, Request, status
from tests.servers.process import ServerProcess

TOP: Final = Path(__file__).parents[3]
FAULTS: Final = (
    status(503, "busy"),
    status(429, "slowly", Retry_After="0"),
    Answer(b"", RESET),
    Answer(OK[:-2], CLOSE),
    Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", HANG),
)
SHARE: Final = 0.03
"""The share of requests that fail, half of them after their key was recorded."""


class HttpSink(ServerProcess):
    """The server process. A key is in the file before a successful response is sent."""

    def __init__(self) -> None:
        super().__init__("http-sink", users=())
        self.working_directory = TOP
        self._file = self.directory / "keys"
        self.url = f"http://127.0.0.1:{self.port}/"

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", "tests.nightly.servers.http_sink", str(self.port), self._file]

    def is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def keys(self) -> list[str]:
        """The key of each recorded message, once for each time it was recorded."""
        return self._file.read_text().split() if self._file.exists() else []


def main() -> None:
    """Serve until killed."""
    port, path = int(sys.argv[1]), Path(sys.argv[2])

    class Noting(HttpPeer):
        def answer_to(self, request: Request) -> Answer:
            goes_wrong = random.random() < SHARE
            if not goes_wrong or random.random() < 0.5:
                keys.write(f"{request.headers['x-rocketmq-keys']}\n")
            return random.choice(FAULTS) if goes_wrong else Answer()

    async def serve() -> None:
        await Noting(port).start()
        await asyncio.Event().wait()

    with path.open("a", buffering=1) as keys:
        asyncio.run(serve())


if __name__ == "__main__":
    main()
