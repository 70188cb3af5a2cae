"""The line of the handler's author is named, and none of rmqd's or of a library's."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError, check_result
from rmqd.operate.try_handler.selection import Author, place_of, place_of_fault

HELPERS = "def parse(body):\n    import json\n    return json.loads(body)\n"
MAIL = """from shop.helpers import parse
from rmqd.consumer.handling.handler_threads import check_result

def handle(batch):
    return parse(batch)

def misuse(batch):
    check_result((one for one in batch), "mail")

class Mail:
    def handle(self, batch):
        raise ValueError(batch)
"""


@pytest.fixture
def mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of an author, in a folder that has a library installed, too."""
    shop, library = tmp_path / "shop", tmp_path / ".venv" / "lib" / "site-packages"
    shop.mkdir()
    library.mkdir(parents=True)
    (library / "borrowed.py").write_text("def call(function):\n    return function(1, 2, 3)\n")
    (shop / "__init__.py").write_text("")
    (shop / "helpers.py").write_text(HELPERS)
    (shop / "mail.py").write_text(MAIL)
    (tmp_path / "alone.py").write_text("import borrowed\ndef handle(batch):\n    borrowed.call(len)\n")
    monkeypatch.syspath_prepend(library)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("shop.mail")
    for name in ("shop", "shop.mail", "shop.helpers", "alone", "borrowed"):
        sys.modules.pop(name, None)


def place(function: Callable[[Any], object], argument: object, author: Author | None = None) -> str | None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  any
        function(argument)
    return place_of(caught.value, author or Author.of(function))


def test_the_innermost_line_of_the_author_s_package(mail: ModuleType, tmp_path: Path) -> None:
    """json raised it; that the package has several modules makes no difference."""
    assert place(mail.handle, "{") == f"{tmp_path}/shop/helpers.py:3 in parse"


def test_what_rmqd_raised_is_blamed_on_the_line_that_called_it(mail: ModuleType, tmp_path: Path) -> None:
    assert check_result is mail.check_result
    assert place(mail.misuse, []) == f"{tmp_path}/shop/mail.py:8 in misuse"


def test_methods_and_wrapped_functions_have_an_author(mail: ModuleType, tmp_path: Path) -> None:
    here = f"{tmp_path}/shop/mail.py:12 in handle"
    assert place(mail.Mail().handle, "x") == here
    assert place(functools.partial(mail.Mail().handle), "x") == here


def test_a_library_in_the_author_s_folder_is_not_his(mail: ModuleType, tmp_path: Path) -> None:
    """As with a virtual environment inside of the project."""
    alone = importlib.import_module("alone")
    assert place(alone.handle, []) == f"{tmp_path}/alone.py:3 in handle"


def test_without_a_line_of_his_it_is_the_innermost_that_is_not_rmqd_s(mail: ModuleType) -> None:
    found = place(json.loads, "{", Author.of(mail.handle))
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

    assert place_of(raised.value.with_traceback(frame), Author.of(mail.handle)) is None


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
    assert place_of_fault(stacks, Author.of(mail.handle)) == f"{tmp_path}/shop/mail.py:5 in handle"
    assert place_of_fault("", Author.of(mail.handle)) is None
