"""Finds secrets in configuration files that every user of the machine can read."""

from __future__ import annotations

import stat
from pathlib import Path

from rmqd.config.problems import ConfigProblem
from rmqd.config.reading.files import find_config
from rmqd.config.reading.source import literal_secrets, read_source


def exposed_secrets(path: Path | None) -> list[ConfigProblem]:
    """Return the locations of exposed secrets. Returns none if the file cannot be read, which is reported elsewhere."""
    try:
        source = read_source(find_config(path))
        readable = {str(file): oct(mode) for file in source.files if (mode := _mode(file)) & stat.S_IROTH}
    except OSError:
        return []
    found = []
    for place, where in literal_secrets(source.tree) if readable else ():
        file = place.rpartition(":")[0].rpartition(":")[0]
        if file in readable:
            message = f"a secret in a file that every user can read ({readable[file]}); remove this permission"
            found.append(ConfigProblem(place, where, f"{message}, or write ${{NAME}} or ${{file:PATH}}"))
    return found


def _mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)
