"""Measurements in a separate process, because tracemalloc counts the memory of all threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).parents[2]


def figures(program: str, *arguments: object) -> list[int]:
    """Run a Python program in a process that does nothing else, and return the integers that it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return list(
        map(int, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=TOP).stdout.split())
    )
