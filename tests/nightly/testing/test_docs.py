"""docs/testing.md says what is true: its tests pass, and its cases hold, for the handler of the README."""

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


def test_what_it_shows_of_a_failure_is_what_is_printed(shop: UserFolder) -> None:
    (cases,) = blocks(PAGE, "yaml")
    cases = cases.replace("acked: [order-1]", "acked: [order-1, order-3]").replace("      retried: {order-3: 2}\n", "")
    shop.write("mailer.cases.yaml", cases.replace(", order-3: max_reconsume_times", ""))
    code, out = shop.python("-m", "rmqd", "test")
    assert code == 1
    (shown,) = blocks(PAGE, "console")
    printed = "".join(line for line in out.splitlines(keepends=True) if not line.startswith("mail to"))
    expected = shown.removeprefix("$ rmqd test\n")
    assert re.sub(r"\(\S+mailer.py:\d+\)", "", printed) == re.sub(r"\(\S+mailer.py:\d+\)", "", expected)


def test_what_it_shows_of_an_effect_that_is_not_repeatable_is_what_is_printed(folder: UserFolder) -> None:
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


def test_its_tests_and_cases_pass(shop: UserFolder) -> None:
    for number, text in enumerate(blocks(PAGE, "python")):
        shop.write(f"test_{number}.py", text)
    (cases,) = blocks(PAGE, "yaml")
    shop.write("mailer.cases.yaml", cases)
    code, out = shop.pytest("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    assert code == 0, out
    assert "5 passed" in out
