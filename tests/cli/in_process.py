"""The `rmqd` command in this process, for tests that start no process."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rmqd.cli.app import command_line
from tests.cli.command import Ended


def rmqd(*arguments: str | Path, stdin: bytes = b"") -> Ended:
    """Run `rmqd` with these arguments, in the test's folder.

    `os._exit` only raises SystemExit here, because the threads of this process belong to other tests.
    """
    code: Any = 0
    exit_at_once, os._exit = os._exit, lambda status: sys.exit(status)  # unittest.mock would import asyncio
    with CliRunner().isolation(stdin) as (out, err, _):
        try:
            _command()([str(argument) for argument in arguments], prog_name="rmqd")
        except SystemExit as end:
            code = end.code
        finally:
            os._exit = exit_at_once
        sys.stdout.flush()
        sys.stderr.flush()
        return Ended(code, out.getvalue().decode(), err.getvalue().decode())


@functools.cache
def _command() -> Callable[..., Any]:
    """Built once. CliRunner's `invoke` builds it at each call, which takes longer than most commands."""
    command: Callable[..., Any] = command_line()
    return command
