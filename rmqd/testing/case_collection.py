"""Creates pytest tests from files of cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.errors import ConfigError
from rmqd.testing.case_run import Case, read_cases, run_case


class CasesFile(pytest.File):
    """A file of cases. A problem with the file is a collection error."""

    def collect(self) -> Iterator[CaseItem]:
        """Yield the file's cases, one test for each."""
        try:
            cases = read_cases(self.path)
        except ConfigError as error:
            raise self.CollectError(str(error)) from None
        for case in cases:
            yield CaseItem.from_parent(self, name=case.name, case=case)


class CaseItem(pytest.Item):
    """A case as a test."""

    def __init__(self, *, case: Case, **others: Any) -> None:
        super().__init__(**others)
        self._case = case

    def runtest(self) -> None:
        """Run the case. Fails with the messages that had an unexpected outcome."""
        report = run_case(self._case)
        if report.problems:
            pytest.fail("\n".join([self._case.place, *report.problems]), pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the file, line and name of the case."""
        return self.path, int(self._case.place.split(":")[-2]) - 1, self.name
