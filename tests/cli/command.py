"""The real `rmqd` command, run to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as the JSON document that it must be."""
        return json.loads(self.out)


def rmqd(
    *arguments: str | Path,
    stdin: bytes = b"",
    cwd: Path | None = None,
    python_path: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run `rmqd` with these arguments, in a folder without a configuration unless `cwd` has one.

    `python_path` is one more folder to import from, `variables` are more environment variables.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RMQD_")}
    done = subprocess.run(
        [sys.executable, "-m", "rmqd", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd or Path(__file__).parent,
        env={
            **environment,
            "PYTHONPATH": ":".join(map(str, (TOP, TOP / "handlers", *filter(None, [python_path])))),
            "COLUMNS": "120",
            **(variables or {}),
        },
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
