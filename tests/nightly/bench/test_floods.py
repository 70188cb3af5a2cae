"""Measurements of floods, which also report a daemon that exits or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

import bench.floods.__main__ as floods
from bench.contenders import ROOT
from bench.floods.cases import Case, Stage, unknown_requests
from rmqd.codes import RequestCode

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floods, "SETTLE_SECONDS", 0.0)


async def signal_it(number: signal.Signals, stage: Stage) -> str:
    """Send a signal to the daemon, whose client id has its process id."""
    (heartbeat, *_) = await stage.peer.received(RequestCode.HEART_BEAT)
    os.kill(int(heartbeat.body.split(b"@")[1].split(b"#")[0]), number)
    await asyncio.Event().wait()
    return ""


async def test_a_finished_flood_has_figures() -> None:
    async def flood(stage: Stage) -> str:
        return await unknown_requests(20, stage)

    result = await floods.run(Case("a few", flood), ROOT)
    assert result.remark == "0 rejected as busy"
    assert result.rss_mib > 20


async def test_a_daemon_that_exits_is_reported() -> None:
    assert (await floods.run(Case("killed", partial(signal_it, signal.SIGKILL)), ROOT)).remark == "the daemon exited"


async def test_an_event_loop_that_stays_blocked_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floods, "DEADLINE_SECONDS", 0.5)
    result = await floods.run(Case("frozen", partial(signal_it, signal.SIGSTOP)), ROOT)
    assert result.remark == floods.NOT_DONE
    assert result.kept_ms > 100, "the time until now is reported"


def test_another_checkout_is_measured_in_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, Path]] = []

    async def run(case: Case, checkout: Path) -> floods.Result:
        ran.append((case.name, checkout))
        return floods.Result(1234.0, 50.0, 1.0, "so")

    monkeypatch.setattr(floods, "run", run)
    floods.main(["--only", "16 MiB", "--before", "/elsewhere"])
    assert ran == [("route of 16 MiB", Path("/elsewhere")), ("route of 16 MiB", ROOT)]
    assert "1,234" in capsys.readouterr().out
