"""`--forks N`: collect once, then run the tests in N forked processes, a module at a time.

Each worker of pytest-xdist collects every test, which takes longer than running the quick ones. Fixtures of a session
end with each module here, so tests of shared servers are better off with pytest-xdist.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import selectors
import signal
from collections.abc import Iterator
from typing import BinaryIO

import pytest

INDEX_BYTES = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forks of this process")


@pytest.fixture(autouse=True, scope="module")
def _nothing_forgotten() -> Iterator[None]:
    """Collect the garbage of a module's tests. A coroutine in it that was never awaited fails the last test.

    pytest does so only at the end of a session, and forks and the workers of pytest-xdist do not report that.
    """
    yield
    gc.collect()
    gc.freeze()  # the remaining objects live long, so the end of the next module need not scan them


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks, unless none are requested."""
    if not session.config.option.forks or session.config.option.collectonly or session.testsfailed:
        return None
    modules = [[*items] for _, items in itertools.groupby(session.items, lambda item: item.path)]
    modules.sort(key=len, reverse=True)  # a long module at the end would keep one fork busy while the others are idle
    turns, turns_end = os.pipe()
    os.write(turns_end, b"".join(index.to_bytes(INDEX_BYTES) for index in range(len(modules))))
    os.close(turns_end)
    forks = [Fork(session.config, modules, turns) for _ in range(session.config.option.forks)]
    os.close(turns)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as ends:
        for fork in forks:
            selector.register(fork.reports, selectors.EVENT_READ, fork)
            ends.callback(fork.end)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.forward():
                    selector.unregister(key.fileobj)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
    return True


class Fork:
    """A child process. It takes modules from the pipe `turns`, and sends its reports."""

    def __init__(self, config: pytest.Config, modules: list[list[pytest.Item]], turns: int) -> None:
        self._config = config
        self._running = ""
        reads, writes = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(reads)
            status = 1
            try:
                with os.fdopen(writes, "wb") as reports:
                    _run(config, modules, turns, reports)
                status = 0
            finally:
                os._exit(status)
        os.close(writes)
        self.reports = os.fdopen(reads, "rb")

    def end(self) -> None:
        """Kill the child, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.reports.close()

    def forward(self) -> bool:
        """Hand the next report to pytest. Return False at the end, and raise if the child crashed."""
        try:
            message = pickle.load(self.reports)
        except EOFError:
            _, status = os.waitpid(self.pid, 0)
            if status:
                pytest.exit(f"a fork ended with {os.waitstatus_to_exitcode(status)} in {self._running}", 1)
            return False
        if isinstance(message, str):
            self._running = message
        else:
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=message)
            self._config.hook.pytest_runtest_logreport(report=report)
        return True


def _run(config: pytest.Config, modules: list[list[pytest.Item]], turns: int, reports: BinaryIO) -> None:
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()  # its files are the parent's
    capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(Sender(config, reports))
    for items in _turns(modules, turns):
        for item, following in itertools.zip_longest(items, items[1:]):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _turns(modules: list[list[pytest.Item]], turns: int) -> Iterator[list[pytest.Item]]:
    while index := os.read(turns, INDEX_BYTES):
        yield modules[int.from_bytes(index)]


class Sender:
    """Sends the reports of a fork, and the name of each test before it runs."""

    def __init__(self, config: pytest.Config, reports: BinaryIO) -> None:
        self._config = config
        self._reports = reports

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._send(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _send(self, message: object) -> None:
        pickle.dump(message, self._reports)
        self._reports.flush()
