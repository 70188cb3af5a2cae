"""The plugin in a user's pytest: found by its entry point, quick to import, and clean at its end.

The core of these tests is in tests/testing/test_plugin.py.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable

import pytest
import structlog

from rmqd import Batch
from rmqd.testing import RocketMQ, RunResult
from rmqd.testing.rocketmq import LoopBlockedError
from tests.testing.user_folder import TOP, UserFolder


@pytest.mark.process
def test_run_handler_works_in_an_async_test_of_pytest_asyncio(folder: UserFolder) -> None:
    folder.write(
        "test_user.py",
        """
import pytest

@pytest.mark.asyncio
async def test_both_kinds_of_handlers(rocketmq, run_handler):
    async def handle(batch):
        pass
    rocketmq.send("orders", b"one")
    assert len(run_handler(handle, topic="orders", group="mailer").acked) == 1
    assert len(run_handler(lambda batch: None, topic="orders", group="other").acked) == 1
""",
    )
    code, out = folder.pytest("-o", "asyncio_default_fixture_loop_scope=function")
    assert code == 0, out


@pytest.mark.process
def test_heavy_modules_are_imported_only_when_a_test_needs_them(folder: UserFolder) -> None:
    code, out = folder.python(
        "-c",
        "import sys; before = set(sys.modules); import pytest; import rmqd.testing.plugin; "
        "print(*sorted(name for name in sys.modules if name.startswith('rmqd.')), "
        "*sorted({'pydantic', 'yaml', 'structlog', 'asyncio'} & set(sys.modules)))",
    )
    assert (code, out.split()) == (0, ["rmqd.testing", "rmqd.testing.plugin"])


@pytest.mark.process
def test_the_handler_s_errors_are_shown_with_a_failed_test(folder: UserFolder) -> None:
    folder.write(
        "test_user.py",
        """
def fail(batch):
    raise ValueError("no such customer")

def test_it(rocketmq, run_handler):
    rocketmq.send("orders", b"one", keys="order-1")
    assert run_handler(fail, topic="orders", group="mailer", max_reconsume_times=1).acked
""",
    )
    code, out = folder.pytest()
    assert code == 1
    assert "<RunResult 0 acked, 1 retried, 1 dead_lettered in 2 attempts" in out
    assert "ValueError: no such customer" in out
    assert "handler.failed" in out


@pytest.mark.process
def test_the_example_tests_of_the_handlers_pass_unchanged(folder: UserFolder) -> None:
    shutil.copytree(TOP / "handlers" / "examples", folder.path, dirs_exist_ok=True)
    code, out = folder.pytest()
    assert code == 0, out
    assert "7 passed" in out, "four tests, and three cases"


@pytest.mark.slow
def test_the_line_of_a_handler_that_blocks_the_loop_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    async def block(batch: Batch) -> None:
        let_go.wait()

    with RocketMQ() as rocketmq:
        rocketmq.send("orders", "one")
        with monkeypatch.context() as hasty:
            hasty.setattr("rmqd.testing.rocketmq.GRACE_SECONDS", 0.5)
            try:
                with pytest.raises(LoopBlockedError, match=r"let_go\.wait\(\)"):
                    rocketmq.run_handler(block, topic="orders", group="mailer", timeout=2)
            finally:
                let_go.set()


def test_logging_is_left_as_it_was() -> None:
    assert not structlog.is_configured()
    with RocketMQ():
        assert structlog.is_configured()
    assert not structlog.is_configured()
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    with RocketMQ():
        assert len(structlog.get_config()["processors"]) == 1, "the user has configured logging"
    assert structlog.is_configured()


def test_run_handler_may_run_in_several_threads(rocketmq: RocketMQ, run_handler: Callable[..., RunResult]) -> None:
    rocketmq.send("orders", "one")
    results: list[RunResult] = []
    threads = [
        threading.Thread(
            target=lambda group=group: results.append(run_handler(lambda batch: None, topic="orders", group=group))
        )
        for group in ("mailer", "printer")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(result.acked) for result in results] == [1, 1]
