"""`rmqd broker` of this checkout, in a separate process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator

from bench import contenders, contest

END_SECONDS = 30


@contextlib.contextmanager
def embedded_broker(*arguments: str) -> Iterator[tuple[str, int]]:
    """Run a broker. Yields its name server's address and its process id. Raises ContestError if it does not start."""
    command = [*contenders.rmqd(), "broker", "--listen", "127.0.0.1:0", *arguments]
    environment = contenders.environment()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=contenders.ROOT, env=environment)
    try:
        first_line = process.stdout.readline().split() if process.stdout else []
        if not first_line:
            raise contest.ContestError(f"`{' '.join(command)}` did not start")
        yield first_line[-1], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
