"""One node of a cluster: starts and signals its process, which a later process finds by its pid file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.rocketmq import embedded, jvm
from tests.rocketmq.errors import ClusterError
from tests.rocketmq.spec import ClusterSpec, NodeSpec

POLL_SECONDS = 0.02


class Node:
    """A name server, a broker or a proxy; it writes all its files into `directory`."""

    def __init__(self, cluster: Path, spec: NodeSpec) -> None:
        self.spec = spec
        self.directory = cluster / (spec.process or spec.name)
        self._cluster = cluster
        self._child: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Node {self.spec.name} {self.spec.address} {self.state}>"

    @property
    def name(self) -> str:
        """The node's name: `namesrv`, `broker-a`, `broker-a-s` …"""
        return self.spec.name

    @property
    def address(self) -> str:
        """host:port where clients connect."""
        return self.spec.address

    @property
    def pid(self) -> int | None:
        """The pid while the process runs; else None. A recycled pid is recognized by its start time."""
        if self._child is not None:
            self._child.poll()
        try:
            pid, started = (self.directory / "pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        found = process_state(int(pid))
        return int(pid) if found is not None and found[1] == started else None

    @property
    def state(self) -> str:
        """`running`, `paused` or `dead`."""
        pid = self.pid
        found = process_state(pid) if pid else None
        if found is None:
            return "dead"
        return "paused" if found[0] in "Tt" else "running"

    def spawn(self, spec: ClusterSpec, record: Path | None = None) -> None:
        """Start the process unless it runs. It outlives the current process."""
        if self.pid:
            return
        if self.spec.process:
            command = embedded.command(spec, self.directory)
        else:
            heap = {"namesrv": "128m", "proxy": "256m"}.get(self.spec.kind, spec.heap)
            # a proxy always accepts TLS, and creates its own certificate in the test mode, which is the default
            tls = ["-Dtls.test.mode.enable=true"] if self.spec.kind == "proxy" else None
            tls = tls or jvm.tls_options(spec.tls, spec.certificates)
            command = jvm.command(
                self.spec.kind,
                spec.version,
                self._cluster,
                self.directory,
                heap,
                tls=tls,
                record=record,
                is_measured=spec.is_measured,
            )
            command += ["-pc" if self.spec.kind == "proxy" else "-c", str(self.directory / "conf")]
        clean = {key: value for key, value in os.environ.items() if key not in {"NAMESRV_ADDR", "ROCKETMQ_HOME"}}
        with (self.directory / "out.log").open("ab") as output:
            self._child = subprocess.Popen(
                command,
                cwd=self.directory,
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        found = process_state(self._child.pid)
        (self.directory / "pid").write_text(f"{self._child.pid} {found[1] if found else 0}\n")

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal. Return False if the process has ended."""
        pid = self.pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def wait_gone(self, timeout_seconds: float) -> bool:
        """Wait for the end of the process. Return False if it still runs."""
        deadline = time.monotonic() + timeout_seconds
        while self.pid:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        if self._child is not None:  # it is dead, and may still wait to be reaped
            self._child.wait()
        (self.directory / "pid").unlink(missing_ok=True)
        return True

    def kill(self) -> None:
        """SIGKILL, and wait until the process has ended."""
        self.signal(signal.SIGKILL)
        if not self.wait_gone(20):
            raise ClusterError(f"{self.name} (pid {self.pid}) does not go away")

    def log_tail(self) -> str:
        """The last lines that the process wrote, for an error text."""
        lines: list[str] = []
        for name in ("out.log", "log"):
            with contextlib.suppress(FileNotFoundError):
                text = (self.directory / name).read_text(errors="replace").splitlines()
                lines += [f"  {self.name}/{name}: {line}" for line in text[-12:]]
        return "\n".join(lines)


def process_state(pid: int) -> tuple[str, str] | None:
    """State letter and start time of a process; None if it has ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rsplit(")", 1)[1].split()
    return None if fields[0] in "ZX" else (fields[0], fields[19])
