"""Programs with the official Java client, for example a consumer with a ledger, and a producer of numbered messages."""

from __future__ import annotations

import select
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Self

from tests.rocketmq import jvm, programs, release
from tests.rocketmq.errors import ClusterError
from tests.waiting import wait_until

START_SECONDS = 90.0
"""How long a peer may take to say that it has started."""
MAX_SAID = 2000


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """The options of both peers; `start_*` takes further options by Java's names. `version` is the client's version.

    With `secured` the peer presents a certificate of tests/certificates. Keys are `access_key=` and `secret_key=`.
    """

    nameserver: str
    topic: str
    ledger: Path
    version: str = release.DEFAULT
    secured: bool = False


class Peer:
    """A running program with another client; ended by `stop`, `kill`, or at the end of the `with` block."""

    language: ClassVar[str]

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors
        self.client_id = self._read_started()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open, and it does nothing until it is killed."""
        self._process.send_signal(signal.SIGSTOP)

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def stop(self, timeout_seconds: float = 60) -> int:
        """SIGTERM, and wait for the graceful end; returns the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_seconds)

    def wait(self, timeout_seconds: float = 60) -> int:
        """Wait for the end; returns the exit status. Raises ClusterError with its last output if it does not end."""
        try:
            wait_until(lambda: self._process.poll() is not None, "it ends", timeout_seconds)
        except AssertionError as late:
            raise ClusterError(f"the {self.language} peer has not ended:\n{self._said()[-MAX_SAID:]}") from late
        self._close()
        return self._process.returncode

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _read_started(self) -> str:
        assert self._process.stdout is not None
        # if its consumer cannot start, a Java process never ends, because threads of the client keep running
        readable, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        if not line.startswith("started"):
            self._process.kill()
            self._process.wait(10)
            said = self._said()
            self._close()
            raise ClusterError(f"the {self.language} peer did not start:\n{said}")
        return line.removeprefix("started").strip()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


class JavaPeer(Peer):
    """A program with the official Java client."""

    language = "Java"


def start_consumer(peer: PeerOptions, group: str, **options: object) -> JavaPeer:
    """A DefaultMQPushConsumer; its `client_id` is known on return.

    `orderly=True`, `batch=`, `threads=`, `await_millis=`, `handle_millis=`, `slow_every=`, `slow_millis=`,
    `fail_every=`, `namespace=`, `namespace_v2=`; with `pop=True` the broker assigns the queues, and decides between POP
    and PULL.
    """
    return _start("LedgerConsumer", peer, {"group": group, **options})


def start_producer(peer: PeerOptions, messages: int, **options: object) -> JavaPeer:
    """A DefaultMQProducer: `rate=` per second, `prefix=` of the keys, `bytes=`, `tags=`, `first=`; `wait` for its end.

    `sharding_keys=` is the number of sharding keys, which the messages have in turn. The hash of a sharding key selects
    the queue. The keys of messages then have the form of `ledger.sharding`.
    """
    return _start("NumberedProducer", peer, {"messages": messages, **options})


def start_lite_pull(peer: PeerOptions, group: str, **options: object) -> JavaPeer:
    """A DefaultLitePullConsumer that commits after each poll: `batch=`, `member=`."""
    return _start("LitePullMember", peer, {"group": group, **options})


def start_scripted(nameserver: str, group: str, directory: Path, **options: object) -> JavaPeer:
    """A DefaultMQPushConsumer that follows the script of each message; the options are ScriptedConsumer's."""
    return start_program("ScriptedConsumer", directory, {"namesrv": nameserver, "group": group, **options})


def start_behaving(nameserver: str, members: Sequence[str], directory: Path) -> JavaPeer:
    """Members of many groups in one JVM, a line each: "GROUP TOPIC TAGS WAY", see BehavingMembers."""
    return start_program("BehavingMembers", directory, {"namesrv": nameserver, "members": "\n".join(members)})


def _start(program: str, peer: PeerOptions, options: dict[str, object]) -> JavaPeer:
    common = {"namesrv": peer.nameserver, "topic": peer.topic, "ledger": peer.ledger}
    return start_program(program, peer.ledger.parent, {**common, **options}, peer.version, secured=peer.secured)


def start_program(
    program: str,
    directory: Path,
    options: dict[str, object],
    version: str = release.DEFAULT,
    *,
    secured: bool = False,
) -> JavaPeer:
    """One of the programs in `java/`, which may write to the directory; `version` is the client's."""
    settings = [f"-Drmq.logback.configurationFile={programs.LOGBACK}", f"-Duser.home={directory}"]
    settings += jvm.tls_options(certified=True) if secured else ()
    command = programs.command(program, settings, "192m", version)
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    errors = tempfile.TemporaryFile("w+", dir=directory)  # noqa: SIM115 - the JavaPeer closes it
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
    return JavaPeer(process, errors)
