"""docs/first-handler.md: its blocks, run in order in a shell, lead to a row in PostgreSQL."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.postgresql import PostgresqlServer
from tests.servers.process import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

TOP = Path(__file__).parents[3]
PAGE = (TOP / "docs" / "first-handler.md").read_text()
BLOCK = re.compile(
    r"(?:^`(?P<file>[\w/.]+)`:\n\n)?^```(?P<language>sh|python)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)


class Newcomer:
    """A user who follows the page in a shell. Commands started with `&` run until `leave`."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._folder = folder
        self.log = folder / "shell.log"
        self._log = self.log.open("w")
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        for name in ("rmqd", "pytest"):
            script = bin_folder / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {name} "$@"\n')
            script.chmod(0o755)
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        known = {name: value for name, value in os.environ.items() if not name.startswith("RMQD_")}
        self._shell = subprocess.Popen(
            ["bash", "-e"], cwd=folder, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, text=True,
            env={**known, "PATH": path, "PYTHONPATH": str(TOP), **variables}, start_new_session=True,
        )  # fmt: skip

    def run(self, text: str) -> None:
        """Type a block, and wait for its last command."""
        done = f"block {os.urandom(4).hex()} is done"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{{\n{text}\n}} </dev/null\necho {done}\n")  # commands must not read the next lines
        self._shell.stdin.flush()
        self.reads(lambda log: done in log.splitlines(), text)

    def reads(self, is_there: Callable[[str], object], what: str) -> None:
        """Wait until `is_there` is true for the printed text."""

        def question() -> bool:
            log = self.log.read_text()
            assert is_there(log) or self._shell.poll() is None, f"the shell ended in: {what}\n{log}"
            return bool(is_there(log))

        try:
            wait_until(question, what, 120)
        except AssertionError as error:
            error.add_note(self.log.read_text())
            raise

    def write(self, file: str, text: str) -> None:
        """Edit a file of the project."""
        (self._folder / "order-book" / file).write_text(text)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text in a file of the project."""
        self.write(file, (self._folder / "order-book" / file).read_text().replace(old, new))

    def leave(self) -> None:
        """Close the terminal."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._log.close()


def test_the_steps_of_the_page_lead_to_a_row_in_the_database(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    shop, test = postgresql.database(), postgresql.database()
    newcomer = Newcomer(tmp_path, {"SHOP_DB": shop, "SHOP_TEST_DB": test})
    blocks = [(found["file"], found["language"], found["text"]) for found in BLOCK.finditer(PAGE)]
    assert [file or language for file, language, _ in blocks] == [
        "sh", "sh", "sh", "sh", "sh", "sh", "sh", "sh",
        "tests/conftest.py", "sh", "order_book/handler.py", "tests/test_handler.py", "sh",
    ]  # fmt: skip
    texts = [text for *_, text in blocks]
    project, dev, send, pause, dead, replay = texts[1:7]  # not the installations: `make dist` tries one
    conftest, without_cases, handler, tests, end = texts[8:]
    try:
        newcomer.run(project)
        newcomer.reads(lambda log: "3 passed" in log, "the project's own tests pass")
        config = tmp_path / "order-book" / "config" / "rmqd.yaml"  # a free port in place of the usual one
        config.write_text(f"http: {{listen: 127.0.0.1:{free_port()}}}\n{config.read_text()}")
        newcomer.run(dev.replace("rmqd dev", "rmqd dev &"))  # the second terminal
        newcomer.reads(lambda log: "RocketMQ 127" in log, "the broker listens")
        address = re.findall(r"RocketMQ ([\d.:]+)", newcomer.log.read_text())[0]
        newcomer.run(f"export RMQD_NAMESERVER={address}\n{send}")
        newcomer.reads(lambda log: "order order-1 over 12" in log, "the template handles an order")
        newcomer.run(pause)
        newcomer.reads(lambda log: "order order-2 over 7" in log, "the resumed group handles an order")
        log = newcomer.log.read_text()
        assert log.index("order-book  running, paused") < log.index("order order-2 over 7")
        send_invalid, show = dead.splitlines()
        newcomer.run(send_invalid)
        newcomer.reads(lambda log: "message.dead_lettered" in log, "the invalid order is a dead letter")
        newcomer.run(show)
        newcomer.reads(lambda log: "total: Field required  order-3" in log, "the reason is shown")
        newcomer.edit("order_book/handler.py", "total: int", "total: int = 0")
        newcomer.reads(lambda log: "handler.reloaded" in log, "the edit is taken over")
        newcomer.run(replay)
        newcomer.reads(lambda log: "order order-3 over 0" in log, "the dead letter is handled")
        newcomer.write("tests/conftest.py", conftest)
        newcomer.run(without_cases)
        newcomer.write("order_book/handler.py", handler)
        newcomer.reads(lambda log: log.count("handler.reloaded") == 2, "the second edit is taken over")
        newcomer.run("pytest")
        newcomer.reads(lambda log: "2 passed" in log, "the template's tests pass with the new handler")
        newcomer.write("tests/test_handler.py", tests)
        newcomer.run(end)
        newcomer.reads(lambda log: "1 passed" in log, "the test with chaos passes")
        rows = "SELECT * FROM orders"
        wait_until(
            lambda: _rows(postgresql, shop, rows) == [("order-4", 9)], "it alone is a row: no test wrote there", 60
        )
    finally:
        newcomer.leave()


def _rows(postgresql: PostgresqlServer, database: str, statement: str) -> list[tuple[object, ...]]:
    return postgresql.execute(database, statement)
