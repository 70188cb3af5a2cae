"""Fixtures and guards of every test."""

from __future__ import annotations

from rmqd.runtime import structlog_without_rich  # noqa: F401  before structlog, see there

# isort: split

import gc
import logging
import signal
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest
import structlog

from rmqd.runtime.plain_text import known_secrets

pytest_plugins = [
    "tests.servers.fixtures",  # pytest calls the last plugin first, and this one needs the groups of the others
    "tests.run_guard",
    "tests.forks",
    "tests.slow_tests",
    "tests.processes",
    "tests.rocketmq.fixtures",
    "tests.rocketmq.lifetimes",
    "tests.spark.fixtures",
    "tests.conformance.plugin",
]

MAX_DAILY_CASES = 5_500

# `make unit` takes the second by --hypothesis-profile. How busy the machine is decides nothing.
hypothesis.settings.register_profile("rmqd", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("unit", hypothesis.settings.get_profile("rmqd"), max_examples=20)
hypothesis.settings.load_profile("rmqd")


def pytest_configure() -> None:
    """Make tests independent of earlier tests in the process, and of the way in which the process was started."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a shell ignores SIGINT for background processes; processes that tests start and interrupt would inherit this
        signal.signal(signal.SIGINT, signal.default_int_handler)
    configure = structlog.configure

    def configure_uncached(*arguments: Any, **options: Any) -> None:
        # a cached logger keeps the output of the first test that used it, so later tests would capture nothing
        configure(*arguments, **{**options, "cache_logger_on_first_use": False})

    structlog.configure = configure_uncached


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector. Collected items live until the end, and scanning them takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: list[str]) -> None:
    """Limit the daily cases. A test of this would pass when .ci/run repeats it without the others."""
    daily = sum(not nodeid.startswith("tests/nightly/") for nodeid in ids)
    assert daily <= MAX_DAILY_CASES, f"{daily} daily cases; expected at most {MAX_DAILY_CASES}, others are nightly"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in the logs of tests, because pytest-xdist sends reports as UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Restore the logging setup after each test, because some tests configure logging like the daemon."""
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, logging.root.manager.disable
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.disable(disabled)
    structlog.reset_defaults()
    known_secrets.clear()
