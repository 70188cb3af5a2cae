"""A packed environment: an archive with rmqd, plugins and their dependencies, which Spark unpacks for each executor.

It contains no interpreter. Its `bin/python` is a launcher that starts the node's Python, which must have the same
version, with `lib` first on the path. So the archive can be unpacked anywhere, and a node without a suitable Python
reports that.
"""

from __future__ import annotations

import io
import os
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rmqd.spark.submit.packed_files import PackedFile

NAME: Final = "environment"
"""Name of the unpacked folder in an executor's working directory."""
PYTHON: Final = f"./{NAME}/bin/python"
COMPRESSION: Final = 1  # takes a third of the time of the usual 6, and a tenth more space

_LAUNCHER: Final = """#!/bin/sh
# The Python of rmqd's packed environment: this node's own, with what lies beside.
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


def pack(files: Iterable[PackedFile], archive: Path) -> None:
    """Write the archive completely, or not at all. Raises OSError."""
    handle, unfinished = tempfile.mkstemp(dir=archive.parent, prefix=f".{archive.name}-")
    try:
        with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=COMPRESSION) as tar:
            _add_launcher(tar)
            for file in files:
                tar.add(file.path.resolve(), f"lib/{file.name}", recursive=False, filter=_of_nobody)
        os.replace(unfinished, archive)
    except BaseException:
        os.unlink(unfinished)
        raise


def launcher() -> str:
    """Return the text of `bin/python`, for the version of this Python."""
    major, minor = sys.version_info[:2]
    return _LAUNCHER % {"major": major, "minor": minor, "platform": sysconfig.get_platform()}


def _add_launcher(tar: tarfile.TarFile) -> None:
    text = launcher().encode()
    entry = tarfile.TarInfo("bin/python")
    entry.size, entry.mode = len(text), 0o755
    tar.addfile(entry, io.BytesIO(text))


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make an entry readable for all users, and remove the name of the packing user."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o111 else 0o644
    return entry
