"""`rmqd test --watch`: runs the command again in a new process after each change of a file.

A new process keeps no old code: no modules, and no objects that modules created on import.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import typer

from rmqd.process.file_watch import LOOK_SECONDS, FileWatch

ENDINGS = (".py", ".yaml", ".yml", ".toml")


def run_again_and_again(path: Path, config: Path | None, output: str, *, chaos: bool, kills: bool) -> None:
    """Run the cases, and again after each change, until Ctrl-C."""
    command = [sys.executable, "-m", "rmqd", "test", str(path), "-o", output]
    command += ["--config", str(config)] if config is not None else []
    command += ["--chaos"] if chaos else []
    command += ["--chaos-kills"] if kills else []
    files = FileWatch([Path(), path if path.is_dir() else path.parent], endings=ENDINGS)
    try:
        while True:
            subprocess.run(command, check=False)
            typer.echo("waiting for file changes; press Ctrl-C to end", err=True)
            while not (changed := files.changes()):
                time.sleep(LOOK_SECONDS)
            typer.echo(f"\n{', '.join(_short(file) for file in changed)} changed", err=True)
    except KeyboardInterrupt:
        return


def _short(file: Path) -> str:
    here = Path().resolve()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
