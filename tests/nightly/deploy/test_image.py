"""deploy/Dockerfile: the build itself, if Docker runs."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.nightly.deploy.test_dockerfile import DOCKERFILE, TOP


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_docker_builds_the_image_and_it_runs_on_a_read_only_root() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no Docker daemon is running, so the image was not built")

    subprocess.run([docker, "build", "-q", "-f", DOCKERFILE, "-t", "rmqd-test", TOP], check=True, timeout=800)
    done = subprocess.run(
        [docker, "run", "--rm", "--read-only", "rmqd-test", "--version"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.startswith("rmqd ")) == (0, True), done.stderr
