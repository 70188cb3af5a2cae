"""Modules that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rmqd
from rmqd.runtime.lazy_imports import import_lazily

SOURCE = """
from tests.runtime.test_lazy_imports import BEGUN, MAY_END
BEGUN.set()
assert MAY_END.wait(30)
value = 1
"""
BEGUN, MAY_END = threading.Event(), threading.Event()


def test_other_threads_wait_until_the_module_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "delayed.py").write_text(SOURCE)
    monkeypatch.setattr(rmqd, "__path__", [*rmqd.__path__, str(tmp_path)])
    with import_lazily():
        delayed = importlib.import_module("rmqd.delayed")
    try:
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(lambda: delayed.value)
            assert BEGUN.wait(30)
            second = threads.submit(lambda: delayed.value)
            threading.Timer(0.05, MAY_END.set).start()
            assert (first.result(30), second.result(30)) == (1, 1)
    finally:
        del sys.modules["rmqd.delayed"], rmqd.delayed
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = delayed.other
