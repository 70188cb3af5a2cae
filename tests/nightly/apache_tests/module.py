"""The compiled tests: the jars of the module, fetched by Maven, and our classes that replace some of them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.rocketmq import release
from tests.rocketmq.errors import RocketMqUnavailable
from tests.rocketmq.fetch import INSTALL, find_java, home, locked, say

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
SOURCES = sorted((HERE / "java").glob("*.java"))
LOGBACK = HERE.parents[1] / "rocketmq" / "java" / "logback.xml"
ATTEMPTS = 3


def class_path() -> str:
    """Return the class path of the tests. Fetches and compiles it the first time. Raises RocketMqUnavailable."""
    base = home() / "own-tests"
    with locked(base / ".lock"):
        jars = _jars(base)
        compiled = base / f"classes-{_digest(POM, *SOURCES)}"
        if not compiled.exists():
            _compile(jars, compiled)
    return ":".join(map(str, (compiled, *jars)))


def tests_jar() -> Path:
    """Return the jar with the tests."""
    return _library(home() / "own-tests") / f"rocketmq-test-{release.DEFAULT}-tests.jar"


def logs() -> Path:
    """Return the directory for the JVMs' output."""
    directory = home() / "own-tests" / "log"
    directory.mkdir(exist_ok=True)
    return directory


def java(*options: str) -> list[str]:
    """Return the start of a command that runs one of the classes."""
    return [
        *(find_java(), "-Xmx512m", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        f"-Drmq.logback.configurationFile={LOGBACK}",
        "-Djava.net.preferIPv4Stack=true",
        *options,
        *("-cp", class_path()),
    ]


def classes() -> list[str]:
    """Return the test classes that use a cluster. The others start RocketMQ's own parts inside their JVM."""
    done = subprocess.run([*java(), "RunTests", "list", str(tests_jar())], capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _library(base: Path) -> Path:
    return base / f"lib-{_digest(POM)}"


def _jars(base: Path) -> list[Path]:
    library = _library(base)
    if not (library / ".complete").exists():
        maven = shutil.which("mvn")
        if not maven:
            raise RocketMqUnavailable(f"mvn is not on PATH; Maven fetches RocketMQ's tests once ({INSTALL})")
        say(f"fetching the tests of RocketMQ {release.DEFAULT} into {library} (110 MB, once)")
        command = [
            *(maven, "-q", "-B", "-Dstyle.color=never", "-f", str(POM), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={library}", f"-Drocketmq.version={release.DEFAULT}"),
        ]
        for _ in range(ATTEMPTS):
            done = subprocess.run(command, capture_output=True, text=True, cwd=base, check=False)
            if done.returncode == 0:
                break
        else:
            said = "\n".join(done.stdout.splitlines()[-15:])
            raise RocketMqUnavailable(f"Maven could not copy the tests of RocketMQ {release.DEFAULT}:\n{said}")
        (library / ".complete").touch()
    return sorted(library.glob("*.jar"))


def _compile(jars: list[Path], compiled: Path) -> None:
    fresh = compiled.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    command = [find_java("javac"), "-nowarn", "-d", str(fresh), "-cp", ":".join(map(str, jars)), *map(str, SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RocketMqUnavailable(f"the classes before RocketMQ's tests do not compile:\n{done.stderr}")
    fresh.rename(compiled)
