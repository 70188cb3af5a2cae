"""`rmqd dev` as a process: RocketMQ, the groups, messages from standard input, and reloads of saved files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import TOP
from tests.waiting import wait_until

CONFIGURATION = """\
nameserver: ${NOT_SET}
clusters: {tokyo: {nameserver: "nowhere:1", client: {namespace: shop}}}
http: {listen: "127.0.0.1:0"}
groups:
  mailer:
    cluster: tokyo
    subscriptions: {orders: "paid || refunded"}
    consume_from_where: first_offset
    handler: {plugin: jsonl, options: {path: out.jsonl}}
"""


@pytest.mark.process
def test_dev_sends_lines_to_its_groups_and_reloads_a_saved_configuration(tmp_path: Path) -> None:
    file, out = tmp_path / "rmqd.yaml", tmp_path / "out.jsonl"
    file.write_text(CONFIGURATION)
    variables = {"PYTHONPATH": f"{TOP}:{TOP}/handlers", "PATH": "/usr/bin:/bin"}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "rmqd", "dev", "rmqd.yaml"],
            cwd=tmp_path,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdin is not None
            assert process.stdout is not None

            def send(line: str) -> str:
                assert process.stdin is not None
                assert process.stdout is not None
                print(line, file=process.stdin, flush=True)
                return process.stdout.readline()

            assert process.stdout.readline().startswith("RocketMQ 127.0.0.1:")
            others = (
                r"other addresses than usual, so in other terminals: (rmqd send --nameserver \S+, )?rmqd status --http "
            )
            assert re.match(others + r"127.0.0.1:[1-9]\d+\n", process.stdout.readline())
            example = 'orders --tags paid {"id": "order-1", "total": 12}'
            assert process.stdout.readline() == f"send a message: {example}    Ctrl-C ends\n"
            sent = send(example.replace("--tags", "--keys k-1 --tags"))
            assert re.match(r"sent \w+  orders  queue \d  offset 0\n", sent)
            assert send("bills 1").startswith("not sent; expected TOPIC ")
            wait_until(lambda: out.exists() and out.read_text().count("\n") == 1, "the first message is handled")
            assert json.loads(out.read_text())["keys"] == "k-1"
            file.write_text(CONFIGURATION.replace("{orders:", '{bills: "*", orders:'))
            wait_until(lambda: send("bills 2").startswith("sent "), "the new topic is known")
            wait_until(lambda: out.read_text().count("\n") == 2, "the second message is handled")
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
