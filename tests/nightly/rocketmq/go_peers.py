"""Programs with RocketMQ's Go client, built on first use with the installed Go, 1.19 or later (as in Debian)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.rocketmq.errors import ClusterError, RocketMqUnavailable
from tests.rocketmq.fetch import home, locked
from tests.rocketmq.peers import Peer

SOURCES = Path(__file__).with_name("go")
BUILD_SECONDS = 300.0


class GoPeer(Peer):
    """A running Go program."""

    language = "Go"


def start_member(directory: Path, options: dict[str, object]) -> GoPeer:
    """Start the program in `go/` with these options, as a member or a producer."""
    command = [str(program())]
    for name, value in options.items():
        command.append(f"-{name.replace('_', '-')}={value}")
    errors = tempfile.TemporaryFile("w+", dir=directory)  # noqa: SIM115 - the GoPeer closes it
    process = subprocess.Popen(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
    )
    return GoPeer(process, errors)


def available() -> bool:
    """Whether the program is built or can be built."""
    return shutil.which("go") is not None or _binary().exists()


def program() -> Path:
    """The built program. Raises RocketMqUnavailable if Go is missing or the client's module cannot be downloaded."""
    binary = _binary()
    with locked(binary.parent / ".lock"):
        if binary.exists():
            return binary
        if shutil.which("go") is None:
            raise RocketMqUnavailable("no Go on PATH (Debian: apt-get install golang-go)")
        fresh = binary.with_name(f".new-{os.getpid()}")
        done = subprocess.run(
            ["go", "build", "-o", str(fresh), "."],
            cwd=SOURCES,
            env={**os.environ, "CGO_ENABLED": "0"},  # needs no C compiler
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
        if done.returncode:
            problem = RocketMqUnavailable if "dial tcp" in done.stderr else ClusterError
            raise problem(f"the Go peer cannot be built:\n{done.stderr}")
        fresh.rename(binary)
    return binary


def _binary() -> Path:
    sources = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    return home() / "peer" / f"go-{hashlib.sha256(sources).hexdigest()[:12]}"
