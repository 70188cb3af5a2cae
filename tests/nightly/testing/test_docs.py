"""docs/testing.md: its tests and cases pass with the handler of the README, and its output is the real one."""

from __future__ import annotations

import re

import pytest

from tests.testing.user_folder import TOP, UserFolder, blocks

pytestmark = pytest.mark.process

PAGE = (TOP / "docs" / "testing.md").read_text()
# a busy machine may need more than the usual seconds for the first histories
PATIENT = """
from rmqd.testing.chaos import chaos_search
chaos_search.SEARCH_SECONDS = chaos_search.SHORTEN_SECONDS = 60
"""


@pytest.fixture
def shop(folder: UserFolder) -> UserFolder:
    """A folder with the README's handler."""
    folder.write("mailer.py", blocks((TOP / "README.md").read_text(), "python")[0])
    return folder


def test_the_failure_in_the_page_is_the_printed_one(shop: UserFolder) -> None:
    (cases,) = blocks(PAGE, "yaml")
    cases = cases.replace("acked: [order-1]", "acked: [order-1, order-3]").replace("      retried: {order-3: 2}\n", "")
    shop.write("mailer.cases.yaml", cases.replace(", order-3: max_reconsume_times", ""))
    code, out = shop.python("-m", "rmqd", "test")
    assert code == 1
    (shown,) = blocks(PAGE, "console")
    printed = "".join(line for line in out.splitlines(keepends=True) if not line.startswith("mail to"))
    expected = shown.removeprefix("$ rmqd test\n")
    assert re.sub(r"\(\S+mailer.py:\d+\)", "", printed) == re.sub(r"\(\S+mailer.py:\d+\)", "", expected)


def test_the_chaos_failure_in_the_page_is_the_printed_one(folder: UserFolder) -> None:
    (test,), (shown,) = blocks(PAGE, "py"), blocks(PAGE, "text")
    folder.write("test_turnover.py", test)
    folder.write("conftest.py", PATIENT)
    code, out = folder.pytest()
    assert code == 1
    printed = "".join(line.removeprefix("E").removeprefix("  ").lstrip(" ") for line in out.splitlines(keepends=True))
    assert "".join(line.lstrip(" ") for line in shown.splitlines(keepends=True)) in printed


def test_the_test_in_the_page_about_handlers_passes(folder: UserFolder) -> None:
    page = blocks((TOP / "docs" / "handlers.md").read_text(), "python")
    (handler,) = (text for text in page if "class Mailer" in text)
    (test,) = (text for text in page if "def test_" in text)
    folder.write("test_user.py", f"{handler}\n\n{test}")
    code, out = folder.pytest()
    assert code == 0, out


def test_the_tests_and_cases_in_the_page_pass(shop: UserFolder) -> None:
    for number, text in enumerate(blocks(PAGE, "python")):
        shop.write(f"test_{number}.py", text)
    (cases,) = blocks(PAGE, "yaml")
    shop.write("mailer.cases.yaml", cases)
    code, out = shop.pytest("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    assert code == 0, out
    assert "5 passed" in out
