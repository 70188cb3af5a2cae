"""Reports of handlers on Spark, which the demo receives from another process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from rmqd.demo.demo_orders import DemoLedger
from rmqd.demo.demo_play import LOOPBACK, REPORT_PORT_VARIABLE, install_reporter, receive_reports
from rmqd.errors import install_command
from rmqd.runtime.clock import SystemClock
from tests.cli.in_process import rmqd
from tests.waiting import eventually

SECONDS: Final = 20.0
# Like an executor's Python process, it loads the installed hooks and calls them around its handler.
EXECUTOR: Final = """
import sys
sys.path.append(sys.argv[1])
from rmqd.runtime.clock import SystemClock
from rmqd.consumer.hooks import GroupHooks
from rmqd.plugins.strategies import load_hooks
from rmqd.handler_api.batch import LoadedHandler
from rmqd.testing import make_batch, make_message
def handle(batch):
    batch.dead_letter(batch[0], "because")
    if batch[1].reconsume_times:
        raise OSError("not now")
from rmqd.plugins.handler_plugin import HandlerPlugin
hooks = GroupHooks(load_hooks(), "mailer", "client", SystemClock())
loaded = hooks.wrap_handler(HandlerPlugin.of("test", handle).load({}))
big = make_message(keys="order-2", tags="paid", body=b"x" * 100_000, queue_offset=1)
for retries in (0, 1):
    again = make_message(keys="order-3", reconsume_times=retries, queue_offset=2)
    try:
        loaded.handle(make_batch(big, again))
    except OSError:
        pass
"""


@pytest.mark.process
async def test_the_ledger_records_every_reported_message(tmp_path: Path) -> None:
    install_reporter(tmp_path)
    ledger = DemoLedger("mailer", SystemClock())

    async with receive_reports(ledger):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", EXECUTOR, str(tmp_path))
        assert await process.wait() == 0
        await eventually(lambda: len(ledger.handled) >= 4, "the reports arrive", SECONDS)

    assert [(one.key, one.tag, one.attempt, one.outcome) for one in ledger.handled] == [
        ("order-2", "paid", 1, "dead letter"),
        ("order-3", "", 1, "acked"),
        ("order-2", "paid", 1, "dead letter"),
        ("order-3", "", 2, "retried"),
    ]
    assert ledger.handled[0].body == b"x" * 1024
    assert ledger.ages.snapshot().count == 3  # the age of a retried message is not counted
    assert REPORT_PORT_VARIABLE not in os.environ


async def test_invalid_reports_are_ignored() -> None:
    ledger = DemoLedger("mailer", SystemClock())

    async with receive_reports(ledger):
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(LOOPBACK, int(os.environ[REPORT_PORT_VARIABLE]))
        )
        for nonsense in (b"\xff", b"{}", b"[1]", b'["k", "t", "!", 1, "acked", null]', b'["k", "", "", "x", "", 0]'):
            transport.sendto(nonsense)
        transport.sendto(b'["k", "t", "", 1, "acked", 0.5]')
        await eventually(lambda: ledger.handled, "the last one arrives", SECONDS)
        transport.close()

    assert [one.key for one in ledger.handled] == ["k"]


def test_without_pyspark_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    ended = rmqd("demo", "--engine", "spark")

    assert ended.code == 78
    assert ended.err == (
        f"rmqd demo: --engine spark: PySpark is not installed; run {install_command('spark')}, or use local\n"
    )
