"""The start and the end of worker processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqd.consumer.handling.handler_failures import HandlerProcessLostError
from rmqd.consumer.handling.handler_threads import UnusableHandlerError
from rmqd.runtime.child_process import ChildNotUsableError
from rmqd.testing import make_batch, make_message
from tests.plugins.worker_processes.pools import pooled
from tests.plugins.worker_processes.scripted_handler import NOTING, STARTING, SYNC, notes
from tests.plugins.worker_processes.test_losses import SEGFAULT
from tests.waiting import eventually

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of notes."""
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    return tmp_path / "notes"


async def test_a_handler_that_cannot_start_fails_its_group_at_once_or_later(tmp_path: Path) -> None:
    """Later only if no process is left, because other processes would continue."""
    refusing = tmp_path / "refusing"
    options = {"options": {"path": str(refusing)}}
    refusing.touch()
    with pytest.raises(ChildNotUsableError, match="RuntimeError: no database"):
        async with pooled(STARTING, handler=options):
            pass
    refusing.unlink()
    async with pooled(STARTING, handler=options) as handler:
        assert handler.ready is not None
        await handler.ready()
        refusing.touch()
        with pytest.raises(HandlerProcessLostError, match="was killed by SIGSEGV"):
            await handler.handle(make_batch(make_message(SEGFAULT)))
        with pytest.raises(UnusableHandlerError, match="no process of the handler runs: RuntimeError: no database"):
            await handler.ready()


async def test_a_process_that_ends_between_two_calls_affects_no_message(noted: Path) -> None:
    later = "import threading; threading.Timer(0.05, os._exit, [3]).start()"
    async with pooled(NOTING) as handler:
        assert handler.ready is not None
        assert handler.processes is not None
        await handler.ready()
        await handler.handle(make_batch(make_message(later, keys="a")))
        lost = handler.processes.lost
        await eventually(lambda: lost["died"] == 1, "it is seen to be gone", 60)
        await handler.ready()
        await handler.handle(make_batch(make_message("pass", keys="b")))
    assert [key for event, key, _ in notes(noted) if event == "end"] == ["a", "b"]


async def test_a_slot_gets_the_process_of_a_replaced_worker_when_its_task_ends(tmp_path: Path) -> None:
    """A worker is replaced if its call ignores the cancellation; its task may end later."""
    hold = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)"
    turns = {name: asyncio.Queue[str]() for name in ("busy", "replaced", "new")}
    done: list[str] = []

    async with pooled(SYNC, processes=2) as handler:

        async def slot(name: str) -> None:
            while line := await turns[name].get():
                assert handler.ready is not None
                await handler.ready()
                await handler.handle(make_batch(make_message(line)))
                done.append(name)

        async with asyncio.TaskGroup() as tasks:
            slots = {name: tasks.create_task(slot(name)) for name in turns}
            for number, name in enumerate(turns, 1):
                turns[name].put_nowait("pass")
                await eventually(lambda: len(done) == number, "it has called the handler", 60)  # noqa: B023
            turns["replaced"].put_nowait("")
            await slots["replaced"]
            turns["busy"].put_nowait(hold)
            turns["new"].put_nowait("pass")
            try:
                await eventually(lambda: done[3:] == ["new"], "it need not wait for the busy process")
            finally:
                (tmp_path / "go").touch()
            for name in ("busy", "new"):
                turns[name].put_nowait("")
