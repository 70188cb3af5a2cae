"""The reasons of skipped tests, for the summary of a run."""

from __future__ import annotations

import pytest


def left_out(reporter: pytest.TerminalReporter, name: str) -> set[str]:
    """Return the values of the property `name` in the reports. The report of a skipped module has no properties."""
    reports = [*reporter.getreports("skipped"), *reporter.getreports("failed"), *reporter.getreports("error")]
    return {str(value) for report in reports for key, value in getattr(report, "user_properties", ()) if key == name}
