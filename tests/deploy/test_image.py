"""deploy/Dockerfile: what can be said of it without building it, and the build itself where Docker runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent.parent
DOCKERFILE = TOP / "deploy" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    lines = (line.strip() for line in text.splitlines())
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line and not line.startswith("#")]


def last(name: str) -> str:
    return [arguments for instruction, arguments in instructions() if instruction == name][-1]


def test_it_runs_as_a_numeric_user_that_is_not_root() -> None:
    user, group = last("USER").split(":")

    assert int(user) > 0
    assert int(group) > 0


def test_it_has_a_stage_to_build_in_that_is_not_shipped() -> None:
    stages = [arguments for instruction, arguments in instructions() if instruction == "FROM"]

    assert len(stages) == 2
    assert " AS " not in stages[-1]
    assert "pip install" not in "".join(arguments for _, arguments in _last_stage())


def _last_stage() -> list[tuple[str, str]]:
    everything = instructions()
    start = max(index for index, (instruction, _) in enumerate(everything) if instruction == "FROM")
    return everything[start:]


def test_what_it_copies_is_there() -> None:
    for instruction, arguments in instructions():
        if instruction == "COPY" and not arguments.startswith("--from"):
            for source in arguments.split()[:-1]:
                assert (TOP / source).exists(), source


def test_it_listens_where_the_outside_reaches_it_and_asks_itself_there_for_its_health() -> None:
    command = json.loads(last("CMD"))
    health = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    listen = next(argument for argument in command if argument.startswith("http.listen="))

    assert json.loads(last("ENTRYPOINT")) == ["rmqd"]
    assert listen == f"http.listen=0.0.0.0:{last('EXPOSE')}"
    assert health == ["rmqd", "status", "--http", f"http://127.0.0.1:{last('EXPOSE')}"]


@pytest.mark.process
@pytest.mark.parametrize("command", ["run", "status"])
def test_the_commands_are_ones_that_rmqd_has(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "rmqd", command, "--help"], capture_output=True, text=True, check=True)

    options = {"run": ["--set"], "status": ["--http"]}[command]
    assert all(option in done.stdout for option in options)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_docker_builds_it_and_it_runs_on_a_read_only_root() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no Docker daemon is running, so the image was not built")

    subprocess.run([docker, "build", "-q", "-f", DOCKERFILE, "-t", "rmqd-test", TOP], check=True, timeout=800)
    done = subprocess.run(
        [docker, "run", "--rm", "--read-only", "rmqd-test", "--version"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.startswith("rmqd ")) == (0, True), done.stderr
