"""`rmqd run` as a program, interrupted by Ctrl-C.

The tests of `rmqd dev` are in tests/cli/test_dev.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.command import rmqd
from tests.cli.conftest import _as_on_a_machine_without_rmqd

__all__ = ["_as_on_a_machine_without_rmqd"]


@pytest.mark.process
def test_ctrl_c_while_a_handler_is_imported_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (tmp_path / "rmqd.yaml").write_text(
        "nameserver: a:1\ngroups: {early: {subscriptions: {orders: '*'}, handler: {plugin: 'early:handle'}}}\n"
    )
    ended = rmqd("run", "--config", "rmqd.yaml", cwd=tmp_path)
    assert (ended.code, ended.err) == (-signal.SIGINT, "")
