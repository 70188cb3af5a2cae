"""deploy/Dockerfile: checks that need no build."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rmqd.config.load import LISTEN_VARIABLE, load_config
from rmqd.errors import ConfigError
from tests.cli.daemon_here import daemon
from tests.daemon.daemon_process import write_config
from tests.rocketmq.spec import free_port

TOP = Path(__file__).parents[3]
DOCKERFILE = TOP / "deploy" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    lines = (line.strip() for line in text.splitlines())
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line and not line.startswith("#")]


def last(name: str) -> str:
    return [arguments for instruction, arguments in instructions() if instruction == name][-1]


def test_the_image_runs_as_a_numeric_user_other_than_root() -> None:
    user, group = last("USER").split(":")

    assert int(user) > 0
    assert int(group) > 0


def test_the_build_stage_is_not_shipped() -> None:
    stages = [arguments for instruction, arguments in instructions() if instruction == "FROM"]

    assert len(stages) == 2
    assert " AS " not in stages[-1]
    assert "pip install" not in "".join(arguments for _, arguments in _last_stage())


def _last_stage() -> list[tuple[str, str]]:
    everything = instructions()
    start = max(index for index, (instruction, _) in enumerate(everything) if instruction == "FROM")
    return everything[start:]


def test_copied_files_exist() -> None:
    for instruction, arguments in instructions():
        if instruction == "COPY" and not arguments.startswith("--from"):
            for source in arguments.split()[:-1]:
                assert (TOP / source).exists(), source


def test_the_image_listens_on_all_addresses_and_checks_its_health() -> None:
    """Also with another command: `docker run rmqd run --workers 4` replaces CMD."""
    variables = dict(word.split("=", 1) for _, arguments in _last_stage() for word in arguments.split() if "=" in word)

    assert json.loads(last("ENTRYPOINT")) == ["rmqd"]
    assert json.loads(last("CMD")) == ["run"]
    assert variables[LISTEN_VARIABLE] == f"0.0.0.0:{last('EXPOSE')}"
    copied = [arguments.split() for instruction, arguments in instructions() if instruction == "COPY"]
    assert ["deploy/health.py", "/opt/rmqd/health.py"] in copied
    assert json.loads(last("HEALTHCHECK").partition("CMD ")[2])[1:] == ["-I", "-S", "/opt/rmqd/health.py"]


def health(address: str) -> subprocess.CompletedProcess[str]:
    """The health check, run as in the image."""
    return subprocess.run(
        [sys.executable, "-I", "-S", TOP / "deploy" / "health.py"],
        env={LISTEN_VARIABLE: address}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.process
async def test_the_health_check_queries_the_daemon_and_imports_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(set(), (0,))
    path = write_config(tmp_path, "mailer")
    path.write_text(re.sub("^http:.*$", "", path.read_text(), flags=re.MULTILINE))
    monkeypatch.setenv(LISTEN_VARIABLE, f"0.0.0.0:{port}")
    async with daemon(path):
        healthy = await asyncio.to_thread(health, f"0.0.0.0:{port}")
    dead = health(f"0.0.0.0:{port}")

    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert dead.returncode == 1
    assert f"/livez at port {port}" in dead.stderr
    imported = re.findall(r"^import (\w+)", (TOP / "deploy" / "health.py").read_text(), re.MULTILINE)
    assert imported == ["os", "socket", "sys"]


def test_a_configured_address_overrides_the_environment(tmp_path: Path) -> None:
    path = write_config(tmp_path, "mailer", listen="127.0.0.1:1234")

    assert load_config(path, environ={LISTEN_VARIABLE: "0.0.0.0:9464"}).http.listen == "127.0.0.1:1234"
    path.write_text(path.read_text().replace('http: {listen: "127.0.0.1:1234"}', "http: {token: abc}"))
    assert load_config(path, environ={LISTEN_VARIABLE: "0.0.0.0:9464"}).http.listen == "0.0.0.0:9464"
    with pytest.raises(ConfigError, match=r"\$RMQD_HTTP_LISTEN: http.listen: "):
        load_config(path, environ={LISTEN_VARIABLE: "everywhere"})


def test_the_build_context_contains_only_copied_files() -> None:
    """A clone also has a .git and a .venv, which may contain Spark's 600 MB."""
    kept = (TOP / ".dockerignore").read_text().split("\n!")
    first, others = kept[0], {line.splitlines()[0] for line in kept[1:]}

    assert first.splitlines()[-1] == "*"
    for dockerfile in (DOCKERFILE, TOP / "deploy" / "spark" / "Dockerfile"):
        for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile.read_text(), re.MULTILINE):
            assert all(any(one == kept or one.startswith(f"{kept}/") for kept in others) for one in sources.split())
