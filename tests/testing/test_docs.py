"""docs/testing.md says what is true: its tests pass, and its cases hold, for the handler of the README."""

from __future__ import annotations

import re

import pytest

from tests.testing.user_folder import TOP, UserFolder

pytestmark = pytest.mark.process

PAGE = (TOP / "docs" / "testing.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@pytest.fixture
def shop(folder: UserFolder) -> UserFolder:
    """A folder with the README's handler."""
    folder.write("mailer.py", blocks((TOP / "README.md").read_text(), "python")[0])
    return folder


def test_its_tests_and_cases_pass(shop: UserFolder) -> None:
    for number, text in enumerate(blocks(PAGE, "python")):
        shop.write(f"test_{number}.py", text)
    (cases,) = blocks(PAGE, "yaml")
    shop.write("mailer.cases.yaml", cases)
    code, out = shop.pytest("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    assert code == 0, out
    assert "5 passed" in out
