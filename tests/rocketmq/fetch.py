"""Finds a JDK for a real RocketMQ, and lets Maven copy the jars into a cache, once per machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.rocketmq import release
from tests.rocketmq.errors import RocketMqUnavailable

POM = Path(__file__).with_name("pom.xml")
INSTALL = "on Debian: apt-get install openjdk-17-jdk-headless maven"
ATTEMPTS = 4


def home(version: str = release.DEFAULT) -> Path:
    """The directory of a release. It contains directories for the jars, the archives and the compiled peers.

    For 5.5.0 it is RMQD_ROCKETMQ_HOME, for other releases a directory below. If that is not set, ~/.cache/rmqd has all.
    """
    value = os.environ.get("RMQD_ROCKETMQ_HOME")
    version = release.named(version).java
    name = f"rocketmq-{version}"
    if value:
        base = Path(value).expanduser().absolute()
        return base if version == release.DEFAULT else base / name
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "rmqd" / name


def find_java(tool: str = "java") -> str:
    """The path of `java` or `javac`: JAVA_HOME's, else the one on PATH."""
    base = os.environ.get("JAVA_HOME")
    if base and os.access(Path(base) / "bin" / tool, os.X_OK):
        return str(Path(base) / "bin" / tool)
    found = shutil.which(tool)
    if not found:
        raise RocketMqUnavailable(f"{tool} is not on PATH; RocketMQ needs Java 11 or later and Maven ({INSTALL})")
    return found


def jars(version: str = release.DEFAULT) -> list[str]:
    """The class path of a release's programs; raises RocketMqUnavailable before `fetch` was run."""
    library = home(version) / "lib"
    found = sorted(str(path) for path in library.glob("*.jar"))
    if not (library / ".complete").exists() or not found:
        raise RocketMqUnavailable(
            f"no RocketMQ {version} in {home(version)}; run `python -m tests.rocketmq fetch {version}`"
        )
    return found


def fetch(version: str = release.DEFAULT) -> None:
    """Copy a release's jars (30 to 100 MB) unless they are there. Safe to run twice at once."""
    wanted = release.named(version)
    find_java()
    with locked(home(version) / ".lock"):
        if not (home(version) / "lib" / ".complete").exists():
            maven = shutil.which("mvn")
            if not maven:
                raise RocketMqUnavailable(f"mvn is not on PATH; Maven fetches RocketMQ {version} once ({INSTALL})")
            say(f"fetching RocketMQ {version} into {home(version)} (up to 100 MB, once)")
            _copy_jars(maven, wanted)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Print a line for the user who waits."""
    print(text, file=sys.stderr, flush=True)


def _copy_jars(maven: str, wanted: release.Release) -> None:
    base = home(wanted.version)
    for stale in base.glob("lib.tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)
    fresh = base / f"lib.tmp-{os.getpid()}"
    for attempt in range(1, ATTEMPTS + 1):
        problem = _run_maven(maven, fresh, wanted)
        if problem is None:
            break
        say(f"attempt {attempt} to fetch the jars failed")
        if attempt == ATTEMPTS:
            shutil.rmtree(fresh, ignore_errors=True)
            raise RocketMqUnavailable(f"Maven could not copy the jars of RocketMQ {wanted.version}:\n{problem}")
        time.sleep(3 * attempt)  # a mirror that refused may accept a later attempt
    (fresh / ".complete").write_text(wanted.version + "\n")
    shutil.rmtree(base / "lib", ignore_errors=True)
    shutil.rmtree(base / "cds", ignore_errors=True)  # archives fit the jars that they were recorded with
    fresh.replace(base / "lib")


def _run_maven(maven: str, target: Path, wanted: release.Release) -> str | None:
    """Copy into `target`. Return the end of Maven's output if that failed."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    done = subprocess.run(
        [
            *(maven, "-q", "-B", "-Dstyle.color=never", "-f", str(POM), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={target}", f"-Drocketmq.version={wanted.version}"),
            *(["-Pproxy"] if "proxy" in wanted.modules else []),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home(wanted.version),
        check=False,
    )
    complete = all((target / f"rocketmq-{module}-{wanted.version}.jar").exists() for module in wanted.modules)
    return None if done.returncode == 0 and complete else "\n".join(done.stdout.splitlines()[-15:])
