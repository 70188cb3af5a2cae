"""The reasons for which tests were left out, for the summary of a run."""

from __future__ import annotations

import pytest


def left_out(reporter: pytest.TerminalReporter, name: str) -> set[str]:
    """The reasons that tests' reports carry by this name; a module that is skipped as a whole has no properties."""
    reports = [*reporter.getreports("skipped"), *reporter.getreports("failed"), *reporter.getreports("error")]
    return {str(value) for report in reports for key, value in getattr(report, "user_properties", ()) if key == name}
