"""Gets what a real RocketMQ needs: a JDK is found, the jars are copied by Maven into a cache, once per machine."""

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

from tests.rocketmq.errors import RocketMqUnavailable

VERSION = "5.5.0"
POM = Path(__file__).with_name("pom.xml")
INSTALL = "on Debian: apt-get install openjdk-17-jdk-headless maven"
NEEDED_MODULES = ("broker", "namesrv", "proxy", "tools", "client")
ATTEMPTS = 4


def home() -> Path:
    """Where the jars, the archives and the compiled peers are kept (RMQD_ROCKETMQ_HOME, else below ~/.cache)."""
    value = os.environ.get("RMQD_ROCKETMQ_HOME")
    if value:
        return Path(value).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "rmqd" / f"rocketmq-{VERSION}"


def find_java(tool: str = "java") -> str:
    """The path of `java` or `javac`: JAVA_HOME's, else the one on PATH."""
    base = os.environ.get("JAVA_HOME")
    if base and os.access(Path(base) / "bin" / tool, os.X_OK):
        return str(Path(base) / "bin" / tool)
    found = shutil.which(tool)
    if not found:
        raise RocketMqUnavailable(f"{tool} is not on PATH; RocketMQ needs Java 11 or later and Maven ({INSTALL})")
    return found


def jars() -> list[str]:
    """The class path of every RocketMQ program; raises RocketMqUnavailable before `fetch` was run."""
    library = home() / "lib"
    found = sorted(str(path) for path in library.glob("*.jar"))
    if not (library / ".complete").exists() or not found:
        raise RocketMqUnavailable(f"no RocketMQ {VERSION} in {home()}; run `python -m tests.rocketmq fetch`")
    return found


def fetch() -> None:
    """Copy the jars (about 100 MB) unless they are there. Safe to run twice at once."""
    find_java()
    with locked(home() / ".lock"):
        if not (home() / "lib" / ".complete").exists():
            maven = shutil.which("mvn")
            if not maven:
                raise RocketMqUnavailable(f"mvn is not on PATH; Maven fetches RocketMQ {VERSION} once ({INSTALL})")
            say(f"fetching RocketMQ {VERSION} into {home()} (100 MB, once)")
            _copy_jars(maven)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """A line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def _copy_jars(maven: str) -> None:
    for stale in home().glob("lib.tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)
    fresh = home() / f"lib.tmp-{os.getpid()}"
    for attempt in range(1, ATTEMPTS + 1):
        problem = _run_maven(maven, fresh)
        if problem is None:
            break
        say(f"attempt {attempt} to fetch the jars failed")
        if attempt == ATTEMPTS:
            shutil.rmtree(fresh, ignore_errors=True)
            raise RocketMqUnavailable(f"Maven could not copy the jars of RocketMQ {VERSION}:\n{problem}")
        time.sleep(3 * attempt)  # a mirror that refuses is asked again a little later
    (fresh / ".complete").write_text(VERSION + "\n")
    shutil.rmtree(home() / "lib", ignore_errors=True)
    shutil.rmtree(home() / "cds", ignore_errors=True)  # archives fit the jars that they were recorded with
    fresh.replace(home() / "lib")


def _run_maven(maven: str, target: Path) -> str | None:
    """Copy into `target`; the end of Maven's output if that failed."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    done = subprocess.run(
        [
            *(maven, "-q", "-B", "-Dstyle.color=never", "-f", str(POM), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={target}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home(),
        check=False,
    )
    complete = all((target / f"rocketmq-{module}-{VERSION}.jar").exists() for module in NEEDED_MODULES)
    return None if done.returncode == 0 and complete else "\n".join(done.stdout.splitlines()[-15:])
