"""The folder of a user of rmqd: a separate pytest runs its tests, and finds the plugin only by its entry point."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class UserFolder:
    """The folder; `pytest` runs its tests."""

    path: Path

    def write(self, name: str, text: str) -> Path:
        """Create a file."""
        file = self.path / name
        file.write_text(text)
        return file

    def pytest(self, *arguments: str) -> tuple[int, str]:
        """Run the tests, by default without pytest-asyncio. Return the exit code and the output."""
        return self.python(
            "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *(arguments or ("-p", "no:asyncio"))
        )

    def python(self, *arguments: str, seconds: float = 100) -> tuple[int, str]:
        """Run Python in the folder."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": str(TOP), "COLUMNS": "160"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
