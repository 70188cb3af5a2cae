"""A daemon in a separate process, flooded by a scripted peer and measured from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench import contenders
from bench.floods.loop_watch import NOTE, SINCE, SINCE_AT

GROUP, TOPIC = "flooded", "floods"
HERE = Path(__file__).resolve().parent
START_SECONDS = 30.0
SETTLE_SECONDS = 1.0  # wait after the start, so that its last work is not measured
MAX_MIB = 4096  # above this the daemon is killed, so that the machine does not swap


class FloodedError(Exception):
    """The daemon did not start, exited, or was killed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The daemon's configuration for a case."""

    pull_batch: int = 32
    litters: bool = False
    """Whether the handler leaves reference cycles."""


class Flooded:
    """The running daemon."""

    def __init__(self, process: asyncio.subprocess.Process, note: mmap.mmap) -> None:
        self._process = process
        self._note = note

    def begin(self) -> None:
        """Start measuring."""
        SINCE.pack_into(self._note, SINCE_AT, time.monotonic())

    @property
    def has_started(self) -> bool:
        """Return whether the event loop has run."""
        return float(NOTE.unpack(self._note[: NOTE.size])[0]) > 0

    @property
    def kept_ms(self) -> float:
        """The longest time that the loop was blocked since `begin`, including a block that still lasts."""
        beat, worst, _ = NOTE.unpack(self._note[: NOTE.size])
        return float(max(worst, time.monotonic() - beat)) * 1000

    def rss_mib(self, *, peak: bool = False) -> float:
        """Return the resident memory, now or its peak. Raises FloodedError if the daemon has ended."""
        name = "VmHWM" if peak else "VmRSS"
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
            return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
        except (OSError, StopIteration):
            raise FloodedError("the daemon exited") from None

    async def watch_over(self) -> None:
        """Wait until the daemon ends or uses too much memory. Raises FloodedError in both cases."""
        while True:
            if self._process.returncode is not None or self.rss_mib() > MAX_MIB:
                ended = self._process.returncode is not None
                raise FloodedError("the daemon exited" if ended else f"killed at {MAX_MIB:,} MiB")
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def flooded(nameserver: str, settings: Settings, checkout: Path, directory: Path) -> AsyncIterator[Flooded]:
    """Run a daemon of a checkout during the block. Raises FloodedError if it does not start."""
    notes = directory / "notes"
    notes.write_bytes(bytes(NOTE.size))
    config = directory / "rmqd.yaml"
    config.write_text(json.dumps(_config(nameserver, settings, directory, notes)))
    environment = contenders.environment(checkout)
    environment["PYTHONPATH"] += f":{HERE}"
    with (directory / "log").open("wb") as log, notes.open("r+b") as file:
        process = await asyncio.create_subprocess_exec(
            *contenders.rmqd(checkout), "run", "--config", str(config),
            env=environment, cwd=directory, stdout=log, stderr=log,
        )  # fmt: skip
        daemon = Flooded(process, mmap.mmap(file.fileno(), NOTE.size))
        try:
            await _started(daemon, directory)
            yield daemon
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _started(daemon: Flooded, directory: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not daemon.has_started:
        if time.monotonic() > deadline or daemon._process.returncode is not None:
            raise FloodedError(f"did not start: {(directory / 'log').read_text()[-500:]}")
        await asyncio.sleep(0.05)


def _config(nameserver: str, settings: Settings, directory: Path, notes: Path) -> dict[str, object]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        http_port = probe.getsockname()[1]
    handler = {
        "plugin": "loop_watch:Watch",
        "options": {"file": str(notes), "litters": settings.litters},
        "concurrency": 4,
    }
    group = {
        "subscriptions": {TOPIC: "*"},
        "consume_from_where": "first_offset",
        "on_corrupt_message": "skip",
        "pull_batch_size": settings.pull_batch,
        "persist_consumer_offset_interval": "1s",
        "handler": handler,
    }
    return {
        "nameserver": nameserver,
        "client": {"poll_name_server_interval": "1s"},
        "http": {"listen": f"127.0.0.1:{http_port}"},
        "state_dir": str(directory),
        "groups": {GROUP: group},
    }
