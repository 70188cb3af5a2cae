"""The output of the README's commands outside the repository. Numbers, ids and widths may differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from rmqd.testing import RocketMQ
from tests.servers.process import free_port
from tests.testing.user_folder import TOP, blocks
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PAGE = (TOP / "README.md").read_text()


def plain(text: str) -> list[str]:
    """The lines without values that differ from run to run."""
    text = re.sub(r"client \S+|\b[0-9A-F]{32}\b|\d{4}-\d\d-\d\dT\S+Z|\d+(?:\.\d+)?", "#", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_readmes_commands_print_the_shown_output(tmp_path: Path) -> None:
    (tmp_path / "mailer.py").write_text(blocks(PAGE, "python")[0])
    http = f"http: {{listen: 127.0.0.1:{free_port()}}}\nstate_dir: state\n"
    (tmp_path / "rmqd.yaml").write_text(blocks(PAGE, "yaml")[0] + http)
    shown_run, shown_others = blocks(PAGE, "console")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RMQD_")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(TOP), str(TOP / "handlers")])}
    with RocketMQ() as rocketmq, (tmp_path / "log").open("w") as log:
        rocketmq.create_topic("orders", queues=2)
        environment["RMQD_NAMESERVER"] = rocketmq.nameserver

        def start(line: str, output: int | TextIO) -> subprocess.Popen[str]:
            words = f'rmqd() {{ exec {sys.executable} -m rmqd "$@"; }}; {line}'
            return subprocess.Popen(
                ["bash", "-c", words], cwd=tmp_path, env=environment, stdout=output, stderr=output, text=True
            )

        command, *handled = shown_run.splitlines()
        daemon = start(command.removeprefix("$ "), log)
        try:

            def wait(part: str) -> None:
                wait_until(lambda: part in (tmp_path / "log").read_text(), part, 60)

            def stored() -> int:
                return sum(rocketmq.offsets("order-mailer", "orders").values())

            wait("queue.started")
            export, *others = re.split(r"^\$ ", shown_others.removeprefix("$ "), flags=re.MULTILINE)
            environment["RMQD_CONFIG"] = export.strip().partition("=")[2]
            for command, _, expected in (one.partition("\n") for one in others):
                if not command.startswith("rmqd send"):
                    wait_until(lambda: stored() == 3, "the messages are committed", 60)
                process = start(command, subprocess.PIPE)
                printed = process.communicate(timeout=100)[0]
                assert plain(printed) == plain(expected), command
            for line in handled:
                wait(line.partition(" reason=")[2].strip("'") or line)
        finally:
            daemon.terminate()
            daemon.wait()
