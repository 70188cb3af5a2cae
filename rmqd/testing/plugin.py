"""The pytest plugin of rmqd, with the entry point `rmqd`. It imports other modules only when a test uses a fixture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from rmqd.handler_api.batch import Batch
    from rmqd.testing.case_run import Case
    from rmqd.testing.handler_run import RunResult
    from rmqd.testing.rocketmq import RocketMQ
    from rmqd.wire.messages.message import Message


@pytest.fixture
def rocketmq() -> Iterator[RocketMQ]:
    """A RocketMQ for this test: create topics, send, run a handler, read offsets, retries, dead letters."""
    from rmqd.testing.rocketmq import RocketMQ

    with RocketMQ() as running:
        yield running


@pytest.fixture
def run_handler(rocketmq: RocketMQ) -> Callable[..., RunResult]:
    """`run_handler(handler, topic=, group=, **group_keys)`: consumes until nothing is left to do, without delays."""
    return rocketmq.run_handler


@pytest.fixture
def make_message() -> Callable[..., Message]:
    """`make_message(body, keys=, tags=, ...)`: a message for a test that calls a handler directly."""
    from rmqd.testing.message_factory import make_message

    return make_message


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """`make_batch(*messages)`: a batch for a test that calls a handler directly."""
    from rmqd.testing.message_factory import make_batch

    return make_batch


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CasesFile | None:
    """Collect each case of a file `NAME.cases.yaml` as a test, which runs as with `rmqd test`."""
    return CasesFile.from_parent(parent, path=file_path) if file_path.name.endswith(".cases.yaml") else None


class CasesFile(pytest.File):
    """A file of cases. A problem with the file is a collection error."""

    def collect(self) -> Iterator[CaseItem]:
        from rmqd.errors import ConfigError
        from rmqd.testing.case_run import read_cases

        try:
            cases = read_cases(self.path)
        except ConfigError as error:
            raise self.CollectError(str(error)) from None
        for case in cases:
            yield CaseItem.from_parent(self, name=case.name, case=case)


class CaseItem(pytest.Item):
    """A case of a cases file as a pytest test."""

    def __init__(self, *, case: Case, **others: Any) -> None:
        super().__init__(**others)
        self._case = case

    def runtest(self) -> None:
        """Run the case. Fails with the messages that had an unexpected outcome."""
        from rmqd.testing.case_run import run_case

        report = run_case(self._case)
        if report.problems:
            pytest.fail("\n".join([self._case.place, *report.problems]), pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, int(self._case.place.split(":")[-2]) - 1, self.name
