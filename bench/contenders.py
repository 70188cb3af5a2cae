"""The contenders: how each is built, and its command line to drain a topic."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.job import POP, THREADS, TLS, TRACE, Job
from tests import certificates
from tests.rocketmq import jvm
from tests.rocketmq.fetch import find_java, home, jars

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / "peers"
JAVA_HEAP = "512m"
NAMES = ("java", "go", "rmqd", "raw", "floor")  # in the order of their runs
DRAINING = NAMES[:-1]  # the floor has only paced runs
BEFORE = "before"  # rmqd of another checkout

RMQD_CONFIG = """\
nameserver: "{nameserver}"
client: {client}
http: {{listen: "127.0.0.1:{http_port}"}}
state_dir: "{state_dir}"
groups:
  {group}:
    subscriptions: {{"{topic}": "*"}}
    consume_from_where: first_offset
    consume_mode: {consume_mode}
    handler:
      plugin: "bench.handler:{handler}"
      options: {{messages: {messages}, warm: {warm}, sample_file: "{sample_file}"}}
      concurrency: {concurrency}
    consume_message_batch_max_size: {consume_batch}
    pull_batch_size: {pull_batch}
    {more}
"""


def available() -> tuple[str, ...]:
    """Return the contenders that can run here. Go's needs a Go toolchain, or an earlier build."""
    return tuple(name for name in NAMES if name != "go" or shutil.which("go") or _go_binary().exists())


def build(names: tuple[str, ...]) -> None:
    """Compile the code of these contenders and the loader, unless it is compiled already."""
    _build_java()
    if "go" in names:
        _build_go()


def environment(checkout: Path = ROOT) -> dict[str, str]:
    """Return the environment of a contender: it imports from its checkout and refers to no other cluster."""
    values = {key: value for key, value in os.environ.items() if key not in {"NAMESRV_ADDR", "RMQD_CONFIG"}}
    return {**values, "PYTHONPATH": os.pathsep.join((str(checkout), str(checkout / "handlers")))}


def command(job: Job) -> list[str]:
    """Return the command for this job."""
    arguments: dict[str, str | int] = {
        "namesrv": job.nameserver,
        "topic": job.topic,
        "group": job.group,
        "messages": job.messages,
        "pull-batch": job.pull_batch,
    }
    if job.contender == "raw":
        return [sys.executable, "-m", "bench.raw_puller", *_options("--", arguments), *_switches("--", job)]
    if job.contender == "floor":
        return [sys.executable, "-m", "bench.floor", *_options("--", arguments | {"warm": job.warm})]
    if job.contender in ("rmqd", BEFORE):
        return [*rmqd(job.checkout), "run", "--config", str(write_config(job))]
    arguments |= {"consume-batch": job.consume_batch, "threads": THREADS, "timeout": int(job.timeout_seconds)}
    if job.paced:
        arguments["warm"] = job.warm
    if job.contender == "go":
        return [str(_go_binary()), *_options("-", arguments), *_switches("-", job)]
    return [*java("Consume", tls=job.switch == TLS), *_options("--", arguments), *_switches("--", job)]


def rmqd(checkout: Path = ROOT) -> list[str]:
    """Return the `rmqd` command of this interpreter's environment, or of another checkout's `.venv`."""
    python = Path(sys.executable) if checkout == ROOT else checkout / ".venv" / "bin" / "python"
    script = python.with_name("rmqd")
    return [str(script)] if script.exists() else [str(python), "-m", "rmqd"]


def java(main_class: str, *, tls: bool = False) -> list[str]:
    """Return the command that starts one of the Java programs, without its arguments."""
    return [
        find_java(),
        "-Xshare:auto",
        f"-Xmx{JAVA_HEAP}",
        f"-Drmq.logback.configurationFile={PEERS / 'java' / 'logback.xml'}",
        f"-Duser.home={tempfile.gettempdir()}",
        "-Djava.net.preferIPv4Stack=true",
        *(jvm.tls_options(certified=True) if tls else ()),
        "-cp",
        ":".join([str(_java_classes()), *jars()]),
        main_class,
    ]


def _options(dashes: str, values: dict[str, str | int]) -> list[str]:
    return [part for name, value in values.items() for part in (f"{dashes}{name}", str(value))]


def _switches(dashes: str, job: Job) -> list[str]:
    switches = (("latency", job.paced), ("orderly", job.orderly), (job.switch, bool(job.switch)))
    return [f"{dashes}{name}" for name, on in switches if on]


def write_config(job: Job) -> Path:
    """Write rmqd's configuration for this job into its directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        http_port = probe.getsockname()[1]
    path = job.directory / "rmqd.yaml"
    text = RMQD_CONFIG.format(
        nameserver=job.nameserver,
        http_port=http_port,
        state_dir=job.directory,
        group=job.group,
        topic=job.topic,
        client=_client(job),
        more="enable_trace: true" if job.switch == TRACE else "",
        consume_mode="orderly" if job.orderly else "pop" if job.switch == POP else "concurrently",
        handler="Delays" if job.paced else "Drain",
        messages=job.messages,
        warm=job.warm,
        sample_file=job.sample_file or "",
        concurrency=THREADS,
        consume_batch=job.consume_batch,
        pull_batch=job.pull_batch,
    )
    path.write_text(text)
    return path


def _client(job: Job) -> str:
    """Return the client's configuration for the switch, as one line of YAML."""
    own = certificates.CLIENT
    files = {
        "ca_file": certificates.CA,
        "cert_file": certificates.certificate(own),
        "key_file": certificates.key(own),
    }
    settings = {"tls": {"enabled": True, **{key: str(path) for key, path in files.items()}}}
    return json.dumps(settings if job.switch == TLS else {})


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:12]


def _java_classes() -> Path:
    return home() / "bench" / f"java-{_digest(*(PEERS / 'java').glob('*.java'))}"


def _go_binary() -> Path:
    return home() / "bench" / f"go-{_digest(PEERS / 'go' / 'main.go', PEERS / 'go' / 'go.mod')}"


def _build_java() -> None:
    target = _java_classes()
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
    sources = [str(path) for path in (PEERS / "java").glob("*.java")]
    subprocess.run([find_java("javac"), "-nowarn", "-d", fresh, "-cp", ":".join(jars()), *sources], check=True)
    fresh.rename(target)


def _build_go() -> None:
    target = _go_binary()
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    subprocess.run(["go", "build", "-o", str(fresh), "."], cwd=PEERS / "go", check=True)
    fresh.rename(target)
