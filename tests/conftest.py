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

# `make unit` takes the second by --hypothesis-profile. How busy the machine is decides nothing.
hypothesis.settings.register_profile("rmqd", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("unit", hypothesis.settings.get_profile("rmqd"), max_examples=20)
hypothesis.settings.load_profile("rmqd")


def pytest_configure() -> None:
    """What a test finds does not depend on the tests before it in its process, nor on how this one was started."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # so a shell starts what is to run in the background; processes that tests start and interrupt would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    configure = structlog.configure

    def configure_uncached(*arguments: Any, **options: Any) -> None:
        # a logger that is cached keeps the output of the first test that used it, and later ones capture nothing
        configure(*arguments, **{**options, "cache_logger_on_first_use": False})

    structlog.configure = configure_uncached


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives until the end: to look through it for garbage, again and again, would take seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """pytest-xdist sends reports as UTF-8, and what a test logs may have half a character in it."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A test that sets logging up, as the daemon does, leaves the next one's alone."""
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, logging.root.manager.disable
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.disable(disabled)
    structlog.reset_defaults()
    known_secrets.clear()
