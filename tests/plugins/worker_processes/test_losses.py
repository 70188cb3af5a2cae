"""The loss of a worker process affects only the message that caused it; a stop waits for calls in flight."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.plugins.worker_processes.pools import GROUP
from tests.plugins.worker_processes.scene import Scene, scene
from tests.waiting import eventually

pytestmark = pytest.mark.process

SEGFAULT = "import ctypes; ctypes.string_at(0)"


async def test_only_the_message_that_kills_its_process_is_dead_lettered(tmp_path: Path) -> None:
    """The loss is not an attempt of the batch's other messages. They are handled again at once."""
    async with scene(tmp_path, handler={"processes": 1}, consume_message_batch_max_size=8) as it:
        assert (await it.http.post(f"/api/v1/groups/{GROUP}/pause")).is_success  # so that they are one batch
        for number in range(8):
            await it.send("culprit" if number == 4 else f"m{number}", SEGFAULT if number == 4 else "pass", queue=0)
        assert (await it.http.post(f"/api/v1/groups/{GROUP}/resume")).is_success
        await eventually(lambda: "culprit" in it.dead_letters(), "the culprit is given up", 60)
        others = {f"m{number}" for number in range(8) if number != 4}
        await eventually(lambda: set(it.keys()) == others, "the others are handled", 60)
        assert it.keys("begin").count("culprit") == 2
        handled = "rmqd_messages_handled_total"
        await eventually(lambda: counts(it, handled, result="acked", topic="orders", to=7), "they are counted", 60)
        assert await it.metric(handled, result="retried") == 0
        assert await it.metric(handled, result="dead_lettered") == 1


async def test_a_stop_waits_for_a_message_in_flight(tmp_path: Path) -> None:
    """Each process starts and stops the handler once. The offset after the last message is committed."""
    gate = tmp_path / "gate"
    wait = f"import time, pathlib\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"
    async with scene(tmp_path, persist_consumer_offset_interval="1h") as it:
        await it.send("slow", wait)
        await eventually(lambda: it.keys("begin") == ["slow"], "it is being handled", 60)
        it.process.send(signal.SIGTERM)
        await it.process.event("signal.received")
        gate.touch()
        assert await it.process.exit_code() == 0
        assert it.keys() == ["slow"]
        assert sorted(it.pids("start")) == sorted(it.pids("stop"))
        assert len(set(it.pids("start"))) == 2
        assert it.committed() == 1


async def counts(it: Scene, name: str, *, to: float, **labels: str) -> bool:
    return await it.metric(name, **labels) == to
