"""Many concurrent calls: `order_by` compared with orderly queues, and `concurrency: auto` with fixed numbers.

`python -m bench.slots by_key` and `python -m bench.slots knee`. The broker (`rmqd broker`), the daemon and the HTTP
server are separate processes; no Java is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import contenders
from bench.embedded import embedded_broker
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.wire.message_queue import MessageQueue
from tests.rocketmq.spec import free_port

TOPIC, BROKER = "work", "broker-a"
QUEUES = 4
TOGETHER = 100  # messages in one request of the producer
KNEES = (4, 16, 64)
CALL_MS = 100  # duration of a call to the HTTP server, up to its knee
SETTLE_SECONDS, POLL_SECONDS = 30.0, 10.0


@dataclass(frozen=True, slots=True)
class Run:
    """A group that handles `messages` messages of `keys` keys, each call in `milliseconds`."""

    name: str
    messages: int
    keys: int
    milliseconds: float
    group: dict[str, Any]
    concurrency: int


RUNS = (
    Run("orderly, 20 ms", 1_000, 64, 20, {"consume_mode": "orderly"}, 64),
    Run("by key, 20 ms, 64 keys", 12_000, 64, 20, {"order_by": "sharding_key"}, 64),
    Run("by key, 10 ms, 200 slots", 90_000, 20_000, 10, {"order_by": "sharding_key"}, 200),
)


def by_key() -> None:
    """Print each run's messages a second, and CPU per message."""
    for run in RUNS:
        with (
            tempfile.TemporaryDirectory(prefix="rmqd-bench-") as folder,
            embedded_broker("--topic", f"{TOPIC}:{QUEUES}") as (nameserver, _),
        ):
            asyncio.run(_fill(nameserver, run.messages, run.keys))
            handler = {"plugin": "bench.sleeping:Sleeps", "concurrency": run.concurrency}
            handler["options"] = {"messages": run.messages, "milliseconds": run.milliseconds}
            before = os.getloadavg()[0]
            figures = _drain(Path(folder), nameserver, {**run.group, "handler": handler})
            print(
                f"{run.name:26} {figures['msgs_per_s']:8,.0f} messages/s  {figures['cpu_us_per_msg']:6.1f} µs CPU each"
                f"  (load {before:.1f})",
                flush=True,
            )


def knee() -> None:
    """Print calls a second and their p99 for each knee, fixed and with `auto`, and again after the knee has moved."""
    for number, at in enumerate(KNEES):
        _look_at_calls(at, at, at)
        _look_at_calls("auto", at, KNEES[(number + 1) % len(KNEES)])


def _look_at_calls(concurrency: int | str, at: int, then: int) -> None:
    settle_seconds = SETTLE_SECONDS if concurrency == "auto" else SETTLE_SECONDS / 3
    enough = round(max(at, then) * 1000 / CALL_MS * 2 * (SETTLE_SECONDS + POLL_SECONDS))
    port = free_port(set(), (0,))
    with (
        tempfile.TemporaryDirectory(prefix="rmqd-bench-") as folder,
        embedded_broker("--topic", f"{TOPIC}:{QUEUES}") as (nameserver, _),
        _process([sys.executable, "-m", "bench.knee_server", str(port), str(at), str(CALL_MS)]) as server,
    ):
        assert server.stdout is not None
        server.stdout.readline()  # wait until the server listens
        asyncio.run(_fill(nameserver, enough, QUEUES))
        handler = {"plugin": "bench.knee_calls:Calls", "options": {"port": port}, "concurrency": concurrency}
        path = _configure(Path(folder), nameserver, {"handler": handler})
        with _process([*contenders.rmqd(), "run", "--config", str(path)]):
            for now in dict.fromkeys((at, then)):
                _ask(port, f"/knee/{now}")
                time.sleep(settle_seconds)
                _ask(port, "/reset")
                time.sleep(POLL_SECONDS)
                seen = _ask(port, "/figures")
                where = f"knee {now}" if now == at else f"knee {now}, after {at}"
                print(
                    f"{where:18} {concurrency!s:5} {seen['rate']:7.1f}/s  p99 {seen['p99_ms']:6.0f} ms"
                    f"  (load {os.getloadavg()[0]:.1f})",
                    flush=True,
                )


def _ask(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


async def _fill(nameserver: str, messages: int, keys: int) -> None:
    client = ClientInstance(ClientOptions(nameservers=(nameserver,)))
    try:
        for start in range(0, messages, TOGETHER * QUEUES):
            numbers = range(start, min(start + TOGETHER * QUEUES, messages))
            for queue in range(QUEUES):
                batch = [
                    OutgoingMessage(TOPIC, b"{}", sharding_key=f"k{number % keys}")
                    for number in numbers
                    if number % keys % QUEUES == queue
                ]
                place = MessageQueue(TOPIC, BROKER, queue)
                if batch:
                    await client.producer.send_batch(batch, selector=lambda *_, place=place: place)
    finally:
        await client.close()


def _configure(folder: Path, nameserver: str, group: dict[str, Any]) -> Path:
    path = folder / "rmqd.yaml"
    whole = {
        "nameserver": nameserver,
        "http": {"listen": f"127.0.0.1:{free_port(set(), (0,))}"},
        "state_dir": str(folder / "state"),
        "groups": {"bench": {"subscriptions": {TOPIC: "*"}, "consume_from_where": "first_offset", **group}},
    }
    path.write_text(yaml.safe_dump(whole))
    return path


def _drain(folder: Path, nameserver: str, group: dict[str, Any]) -> dict[str, Any]:
    path = _configure(folder, nameserver, group)
    with _process([*contenders.rmqd(), "run", "--config", str(path)]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"peer"'):
                return dict(json.loads(line))
    raise RuntimeError("the daemon ended before it had handled all messages")


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    environment = contenders.environment()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.slots", description=__doc__)
    parser.add_argument("what", choices=("by_key", "knee"))
    {"by_key": by_key, "knee": knee}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
