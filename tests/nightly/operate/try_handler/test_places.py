"""The line of the handler's author is named, and none of rmqd's or of a library's.

The core of these tests is in tests/operate/try_handler/test_places.py.
"""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError, check_result
from rmqd.operate.try_handler.selection import HandlerSource, crashed_line, failing_line
from tests.operate.try_handler.test_places import mail, place

__all__ = ["mail"]


def test_methods_and_wrapped_functions_have_an_author(mail: ModuleType, tmp_path: Path) -> None:
    here = f"{tmp_path}/shop/mail.py:12 in handle"
    assert place(mail.Mail().handle, "x") == here
    assert place(functools.partial(mail.Mail().handle), "x") == here


def test_a_library_in_the_author_s_folder_is_not_his(mail: ModuleType, tmp_path: Path) -> None:
    """As with a virtual environment inside of the project."""
    alone = importlib.import_module("alone")
    assert place(alone.handle, []) == f"{tmp_path}/alone.py:3 in handle"


def test_without_a_line_of_his_it_is_the_innermost_that_is_not_rmqd_s(mail: ModuleType) -> None:
    found = place(json.loads, "{", HandlerSource.of(mail.handle))
    assert found is not None
    assert "json/decoder.py" in found


def test_no_line_of_rmqd_is_named_if_the_author_has_no_line(mail: ModuleType) -> None:
    invalid: Any = (one for one in [""])
    with pytest.raises(HandlerNotAwaitedError) as raised:
        check_result(invalid, "mail")
    frame = raised.value.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != check_result.__code__.co_filename:
        frame = frame.tb_next
    assert frame is not None

    assert failing_line(raised.value.with_traceback(frame), HandlerSource.of(mail.handle)) is None


def test_a_fault_names_the_thread_in_which_the_author_s_code_runs(mail: ModuleType, tmp_path: Path) -> None:
    """As Python's faulthandler writes stacks: the innermost line first, thread by thread."""
    stacks = f"""Fatal Python error: Segmentation fault

Thread 0x00007f2a (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/queue.py", line 180 in get

Current thread 0x00007f2b (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "{tmp_path}/shop/mail.py", line 5 in handle
  File "{Path(check_result.__code__.co_filename)}", line 210 in _call
"""
    assert crashed_line(stacks, HandlerSource.of(mail.handle)) == f"{tmp_path}/shop/mail.py:5 in handle"
    assert crashed_line("", HandlerSource.of(mail.handle)) is None
