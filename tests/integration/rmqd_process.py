"""RmqdProcess: the real `rmqd run`, its configuration, its HTTP endpoint, its log, its signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.rocketmq.spec import free_port
from tests.waiting import wait_until

TOP = Path(__file__).parent.parent.parent
LINE_LENGTH = 400  # the limit for log lines in an error text; a traceback is one log line
LEDGER_HANDLER = "tests.integration.ledger_handler:LedgerHandler"


def ledger_group(topic: str, ledger: Path, member: str, *, concurrency: int = 20, **group: object) -> dict[str, Any]:
    """A group that keeps a ledger; `group` adds or replaces keys, `handler_options` the handler's."""
    options = {"path": str(ledger), "member": member, **_mapping(group.pop("handler_options", {}))}
    return {
        "subscriptions": {topic: "*"},
        "handler": {"plugin": LEDGER_HANDLER, "options": options, "concurrency": concurrency},
        **group,
    }


class RmqdProcess:
    """A daemon in its own directory, killed at the end of the `with` block if it still runs."""

    def __init__(
        self,
        directory: Path,
        nameserver: str,
        groups: Mapping[str, Mapping[str, Any]],
        *arguments: str,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        self.import_from: list[Path] = []
        """More folders that the daemon imports from; before it is started."""
        self.http = f"127.0.0.1:{free_port(set(), (0,))}"
        directory.mkdir(parents=True, exist_ok=True)
        self.config_path = directory / "rmqd.yaml"
        self.write_config(nameserver, groups, client)
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.tail())
        self.kill()

    def write_config(
        self, nameserver: str, groups: Mapping[str, Mapping[str, Any]], client: Mapping[str, Any] | None = None
    ) -> None:
        """Write the configuration; a running daemon reads it at SIGHUP."""
        document = {
            "nameserver": nameserver,
            "client": dict(client or {}),
            "http": {"listen": self.http},
            "log": {"level": "info", "format": "json"},
            "state_dir": str(self.directory / "state"),
            "groups": {name: dict(group) for name, group in groups.items()},
        }
        self.config_path.write_text(yaml.safe_dump(document))

    # --- the process

    def start(self) -> None:
        """Start `rmqd run`; it may be started again after its end."""
        with (self.directory / "out.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rmqd", "run", "--config", str(self.config_path), *self._arguments],
                cwd=TOP,
                env={**os.environ, "PYTHONPATH": ":".join(map(str, (TOP, TOP / "handlers", *self.import_from)))},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the daemon alone."""
        self._running().send_signal(number)

    def wait(self, timeout_seconds: float = 40) -> int:
        """Wait for the end. Returns the exit status."""
        return self._running().wait(timeout_seconds)

    def terminate(self, timeout_seconds: float = 40) -> tuple[int, float]:
        """Stop the daemon with SIGTERM. Returns its exit status, and how many seconds the stop took."""
        begin = time.monotonic()
        self.signal(signal.SIGTERM)
        return self.wait(timeout_seconds), time.monotonic() - begin

    def kill(self) -> None:
        """Kill the daemon and its worker processes with SIGKILL."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    # --- pages, metrics and output

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; (0, b"") if the daemon does not listen yet."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    def post(self, path: str, timeout_seconds: float = 30) -> dict[str, Any]:
        """The response to a POST that must succeed."""
        request = urllib.request.Request(f"http://{self.http}{path}", method="POST")
        with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
            document: dict[str, Any] = json.loads(response.read())
        return document

    def wait_ready(self, timeout_seconds: float = 60) -> None:
        """Wait until /readyz reports that every group has a route and its first assignment."""
        wait_until(self._ready, f"rmqd is ready\n{self.tail()}", timeout_seconds)

    def status(self) -> dict[str, Any]:
        """/api/v1/status."""
        code, body = self.get("/api/v1/status")
        assert code == 200, f"/api/v1/status gave {code} {body!r}\n{self.tail()}"
        document: dict[str, Any] = json.loads(body)
        return document

    def queues(self, group: str) -> list[dict[str, Any]]:
        """The queues of a group in /api/v1/status."""
        return next(entry["queues"] for entry in self.status()["groups"] if entry["name"] == group)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels; 0 if there are none."""
        _, body = self.get("/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log lines so far; with `name`, only the lines of this event."""
        found = []
        for line in self._output().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [event for event in found if name is None or event.get("event") == name]

    def command_lines(self) -> list[str]:
        """The command lines of the daemon and of all processes that it has started, as `ps` shows them."""
        found, pids = [], [self.pid]
        while pids:
            folder = Path(f"/proc/{pids.pop()}")
            with contextlib.suppress(OSError):  # it has ended
                found.append((folder / "cmdline").read_text().replace("\0", " "))
                pids += map(int, " ".join(task.read_text() for task in folder.glob("task/*/children")).split())
        return found

    def everything_shown(self) -> list[str]:
        """Everything that the daemon shows: its pages, its command lines, and the files that it wrote so far."""
        pages = [self.get(path)[1].decode() for path in ("/", "/metrics", "/readyz", "/livez", "/api/v1/status")]
        return [*pages, *self.command_lines(), *self.written()]

    def written(self) -> list[str]:
        """The daemon's output, and its files in state_dir."""
        files = [path for path in self.directory.rglob("*") if path.is_file() and path != self.config_path]
        return [path.read_text(errors="replace") for path in files]

    def tail(self, lines: int = 40) -> str:
        """The end of the output, for an error text."""
        return "\n".join(
            ["--- rmqd's output ends with", *(line[:LINE_LENGTH] for line in self._output().splitlines()[-lines:])]
        )

    def _output(self) -> str:
        path = self.directory / "out.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _ready(self) -> bool:
        assert self.running, f"rmqd ended with {self._running().poll()}\n{self.tail()}"
        return self.get("/readyz")[0] == 200

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value
