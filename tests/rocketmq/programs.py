"""The programs in `java/`, compiled on first use; with a class data archive a start takes half of the CPU time."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.rocketmq import jvm, release
from tests.rocketmq.errors import ClusterError
from tests.rocketmq.fetch import find_java, home, jars, locked, say

SOURCES = Path(__file__).with_name("java")
LOGBACK = SOURCES / "logback.xml"
MAX_SAID = 2000


def command(program: str, options: Sequence[str], heap: str, version: str = release.DEFAULT) -> list[str]:
    """The command that starts a program with these options of the JVM, without its own arguments."""
    jar = compiled(version)
    return [
        *(find_java(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(jvm.sharing(jar.stem, version) or ["-Xshare:auto"]),
        *options,
        "-Djava.net.preferIPv4Stack=true",
        *("-cp", _class_path(jar, version), program),
    ]


def _class_path(jar: Path, version: str) -> str:
    return ":".join([str(jar), *jars(version)])


def compiled(version: str = release.DEFAULT) -> Path:
    """The jar of the programs, compiled once per release and change of their sources, with its archive.

    Programs in `lite` use classes that only the client of the default release has.
    """
    sources = sorted(SOURCES.glob("*.java"))
    if version == release.DEFAULT:
        sources += sorted((SOURCES / "lite").glob("*.java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    directory = home(version) / "peer"
    jar = directory / f"tests-{digest}.jar"  # not a directory, because archives support only jars
    with locked(directory / ".lock"):
        if not jar.exists():
            with tempfile.TemporaryDirectory(dir=directory) as place:
                fresh = Path(place) / jar.name
                names = _compile(sources, fresh, version)
                fresh.rename(jar)
                _record(jar, names, version, Path(place))
    return jar


def _compile(sources: list[Path], jar: Path, version: str) -> list[str]:
    """Compile into the jar. Return the names of its classes."""
    classes = jar.with_suffix("")
    classes.mkdir()
    command = [find_java("javac"), "-nowarn", "-d", str(classes), "-cp", ":".join(jars(version)), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"the Java peers do not compile:\n{done.stderr}")
    files = sorted(classes.iterdir())
    with zipfile.ZipFile(jar, "w") as packed:
        for file in files:
            packed.write(file, file.name)
    return [file.stem for file in files]


def _record(jar: Path, names: list[str], version: str, home_directory: Path) -> None:
    """Write the archive, or report that starts take longer."""
    archive = jvm.archive(jar.stem, version)
    archive.parent.mkdir(exist_ok=True)
    options = ["-XX:+UseSerialGC", f"-Drmq.logback.configurationFile={LOGBACK}", f"-Duser.home={home_directory}"]
    command = [find_java(), f"-XX:ArchiveClassesAtExit={archive}", *options, "-cp", _class_path(jar, version), "Loaded"]
    done = subprocess.run([*command, *names], capture_output=True, text=True, check=False)
    if done.returncode:
        archive.unlink(missing_ok=True)
        say(f"no class data archive of the Java peers, starts take longer: {done.stderr[-MAX_SAID:]}")
