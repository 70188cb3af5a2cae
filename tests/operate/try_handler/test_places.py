"""The failing line in the author's code, not in rmqd or a library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rmqd.consumer.handling.handler_threads import check_result
from rmqd.operate.try_handler.selection import HandlerSource, failing_line

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
    """A package of an author, in a folder with an installed library."""
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


def place(function: Callable[[Any], object], argument: object, author: HandlerSource | None = None) -> str | None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  any
        function(argument)
    return failing_line(caught.value, author or HandlerSource.of(function))


def test_the_innermost_line_of_the_authors_package_is_reported(mail: ModuleType, tmp_path: Path) -> None:
    """json raises the exception, and the package has several modules."""
    assert place(mail.handle, "{") == f"{tmp_path}/shop/helpers.py:3 in parse"


def test_an_exception_from_rmqd_is_reported_at_the_line_that_called_rmqd(mail: ModuleType, tmp_path: Path) -> None:
    assert check_result is mail.check_result
    assert place(mail.misuse, []) == f"{tmp_path}/shop/mail.py:8 in misuse"
