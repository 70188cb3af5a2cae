"""Copies the jars that a pom.xml names into a directory, by Maven, once."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from tests.rocketmq.fetch import ATTEMPTS, INSTALL, locked, say
from tests.servers.process import ServerMissing

COMPLETE = ".complete"


def copy_jars(pom: Path, target: Path, what: str) -> list[Path]:
    """The jars in `target`. The first call fetches them. Raises ServerMissing."""
    with locked(target.parent / f"{target.name}.lock"):
        if not (target / COMPLETE).exists():
            say(f"fetching {what} into {target} (once)")
            _fetch(pom, target, what)
    return sorted(target.glob("*.jar"))


def _fetch(pom: Path, target: Path, what: str) -> None:
    maven = shutil.which("mvn")
    if not maven:
        raise ServerMissing(f"no mvn, which fetches {what} once ({INSTALL})")
    said = ""
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(target, ignore_errors=True)
        done = subprocess.run(
            [
                *(maven, "-q", "-B", "-Dstyle.color=never", "-f", str(pom), "dependency:copy-dependencies"),
                *("-DincludeScope=runtime", f"-DoutputDirectory={target}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            (target / COMPLETE).touch()
            return
        said = "\n".join(done.stdout.splitlines()[-15:])
        say(f"attempt {attempt} to fetch {what} failed")
        time.sleep(3 * attempt)  # a mirror that refused may succeed a little later
    raise ServerMissing(f"no {what}: Maven could not copy its jars:\n{said}")
