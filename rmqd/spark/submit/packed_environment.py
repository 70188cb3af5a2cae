"""A packed environment: an archive with rmqd, plugins and what they need, which Spark unpacks beside each executor.

It has no interpreter of its own. `bin/python` in it is a launcher: it takes the node's Python, which must be of the
same version, and puts what lies in `lib` first on its path. So the archive can be unpacked anywhere, and a node whose
Python does not fit says so.
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
"""The folder as executors see it, in the one that they run in."""
PYTHON: Final = f"./{NAME}/bin/python"
COMPRESSION: Final = 1  # a third of the time of the usual 6, for a tenth more bytes

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
    """Write the archive, or nothing. Raises OSError."""
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
    """The text of `bin/python`, for the version of this Python."""
    major, minor = sys.version_info[:2]
    return _LAUNCHER % {"major": major, "minor": minor, "platform": sysconfig.get_platform()}


def _add_launcher(tar: tarfile.TarFile) -> None:
    text = launcher().encode()
    entry = tarfile.TarInfo("bin/python")
    entry.size, entry.mode = len(text), 0o755
    tar.addfile(entry, io.BytesIO(text))


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Whoever unpacks it may read it, and the packing user's name is nobody's business."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o111 else 0o644
    return entry
