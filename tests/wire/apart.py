"""Measurements in a process of their own: tracemalloc counts what every thread of a process holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).parents[2]


def figures(program: str, *arguments: object) -> list[int]:
    """The integers that a Python program prints, in a process that does nothing else."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return list(
        map(int, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=TOP).stdout.split())
    )
