"""`exec`: the input, the environment and the exit status of commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqd import DeadLetter, Retry
from rmqd_handlers.exec import CommandFailed, Exec
from tests.handlers.messages import make_batch, make_message
from tests.handlers.options import not_refused
from tests.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def run() -> Callable[[Any], Any]:
    """Runs a coroutine on the event loop of asyncio; tests/nightly adds uvloop."""
    return asyncio.run


def make_exec(*command: str, **options: object) -> Exec:
    handler = Exec(Exec.Options.model_validate({"command": list(command), **options}))
    handler.start()
    return handler


async def handle(handler: Exec, *bodies: str) -> None:
    await handler.handle(make_batch(*(make_message(body.encode()) for body in bodies or ("one",))))


def shell(script: str, **options: object) -> Exec:
    return make_exec("sh", "-c", script, **options)


async def time_out(handler: Exec, pids: Path) -> list[str]:
    """Cancel the handler once its command has written its process ids, as the engine does at consume_timeout."""
    task = asyncio.create_task(handle(handler))
    await asyncio.to_thread(wait_until, lambda: pids.exists() and pids.read_text().endswith("\n"), "the command began")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return pids.read_text().split()


def assert_dies(*pids: str) -> None:
    """Wait until the processes have ended: the kernel takes some time for a SIGKILL."""
    wait_until(lambda: not any(map(is_alive, pids)), f"{pids} have ended")


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_command_reads_the_batch_as_json_lines(run: Callable[[Any], Any], tmp_path: Path) -> None:
    run(handle(shell('cat > "$OUT"', env={"OUT": str(tmp_path / "out")}), "one", "two"))

    lines = (tmp_path / "out").read_text().splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["one", "two"]


def test_status_75_asks_for_a_retry(run: Callable[[Any], Any]) -> None:
    with pytest.raises(Retry):
        run(handle(shell("exit 75")))


def test_status_65_dead_letters_with_the_commands_output(run: Callable[[Any], Any]) -> None:
    with pytest.raises(DeadLetter, match="status 65: no such customer"):
        run(handle(shell("echo no such customer >&2; exit 65")))


def test_any_other_status_is_a_failure_with_the_end_of_the_output(run: Callable[[Any], Any]) -> None:
    with pytest.raises(CommandFailed, match=r"(?s)status 3: out\n.*the end$") as failure:
        run(handle(shell("yes out | head -n 100000; echo the end >&2; exit 3")))
    assert len(str(failure.value)) < 3000


def test_a_missing_program_fails_the_start() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        make_exec("no-such-program")


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, object]] = [{}, {"command": []}, {"command": "ls -l"}, {"command": ["ls"], "kill_after": 5}]

    assert not_refused(Exec.Options, wrong) == []


def test_a_command_does_not_get_the_daemons_secrets(
    run: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Except the secrets that `pass_env` names."""
    for name in ("RMQD_SECRET_KEY", "RMQD_ACCESS_KEY", "DB_PASSWORD", "GITHUB_TOKEN", "PLAIN"):
        monkeypatch.setenv(name, "value")
    command = ["sh", "-c", f"env > {tmp_path}/seen"]
    given = {"command": command, "pass_env": ["DB_PASSWORD"], "env": {"MY_TOKEN": "mine"}}
    options = Exec.Options.model_validate(given)
    run(Exec(options).handle(make_batch(make_message())))
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {"DB_PASSWORD", "MY_TOKEN", "PLAIN", "PATH"} <= seen
    assert not {"RMQD_SECRET_KEY", "RMQD_ACCESS_KEY", "GITHUB_TOKEN"} & seen
