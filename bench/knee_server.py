"""An HTTP server with a knee: `python -m bench.knee_server PORT KNEE MILLISECONDS`.

It processes KNEE requests at once, each in MILLISECONDS; further requests wait. GET /knee/N moves the knee, /reset
begins a measurement, /figures returns its result: responses a second, and the duration of requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time


class KneeServer:
    """The server."""

    def __init__(self, knee: int, seconds: float) -> None:
        self._knee, self._seconds = knee, seconds
        self._working = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._since = time.monotonic()
        self._took: list[float] = []

    def move(self, knee: int) -> None:
        """Process up to `knee` requests at once from now on."""
        self._knee = knee
        self._let_in()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to the requests of one connection."""
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()).strip():
                    name, _, value = header.partition(b":")
                    if name.strip().lower() == b"content-length":
                        length = int(value)
                await reader.readexactly(length)
                answer = json.dumps(await self._answer(line.split()[1].decode())).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str) -> object:
        if path.startswith("/knee/"):
            self.move(int(path.rpartition("/")[2]))
            return None
        if path == "/reset":
            self._since, self._took = time.monotonic(), []
            return None
        if path == "/figures":
            took = sorted(self._took) or [0.0]
            rate = len(self._took) / (time.monotonic() - self._since)
            return {"rate": rate, "p99_ms": took[int(len(took) * 0.99)] * 1000, "p50_ms": took[len(took) // 2] * 1000}
        await self._work()
        return None

    async def _work(self) -> None:
        began = time.monotonic()
        if self._working >= self._knee:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._working += 1
        await asyncio.sleep(self._seconds)
        self._working -= 1
        self._let_in()
        self._took.append(time.monotonic() - began)

    def _let_in(self) -> None:
        while self._waiting and self._working < self._knee:
            self._working += 1
            self._waiting.pop(0).set_result(None)


async def main(port: int, knee: int, milliseconds: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.start_server(KneeServer(knee, milliseconds / 1000).serve, "127.0.0.1", port, backlog=512)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
