"""A worker process that dies, hangs or eats its memory costs nobody else anything, and its message is told why."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.handler_processes.scene import scene
from tests.waiting import eventually

pytestmark = pytest.mark.process

SEGFAULT = "import ctypes; ctypes.string_at(0)"
HANG = "import time; time.sleep(3600)"
HANG_IN_C = "import re; re.match('(a*)*b', 'a' * 60)"  # holds the interpreter's lock
EAT = "eaten = bytearray(1 << 33)"


async def test_the_culprits_are_dead_letters_with_why_and_the_others_are_handled_once(tmp_path: Path) -> None:
    culprits = {"segfault": SEGFAULT, "hang": HANG_IN_C, "eat": EAT}
    handler = {"processes": 2, "process_memory": "256MiB"}
    async with scene(tmp_path, handler=handler, consume_timeout="4s") as it:
        for number in range(60):
            await it.send(f"m{number}")
            if number % 20 == 10:
                key = list(culprits)[number // 20]
                await it.send(key, culprits[key])
        others = {f"m{number}" for number in range(60)}
        await eventually(lambda: it.dead_letters().keys() == culprits.keys(), "the culprits are given up", 90)
        await eventually(lambda: set(it.keys()) == others, "all others are handled", 60)
        assert len(it.keys()) == len(others)
        assert {key: it.keys("begin").count(key) for key in culprits} == dict.fromkeys(culprits, 2)
        letters = it.dead_letters()
        reasons = {key: one.properties["RMQD_REASON"] for key, one in letters.items()}
        twice = "the handler's process was lost 2 times over this message: it "
        assert reasons == {
            "segfault": f"{twice}was killed by SIGSEGV",
            "hang": f"{twice}did not end its call in consume_timeout (4 s), and was killed",
            "eat": f"{twice}used up its memory limit (handler.process_memory), and was ended",
        }
        stacks = {key: one.properties["RMQD_EXCEPTION"] for key, one in letters.items()}
        assert "Segmentation fault" in stacks["segfault"]
        assert "MemoryError" in stacks["eat"]
        assert all("scripted_handler.py" in text and "HandlerProcessLostError" in text for text in stacks.values())
        for cause in ("died", "hung", "memory"):
            assert await it.metric("rmqd_handler_processes_lost_total", cause=cause) == 2
        assert it.process.events("handler_process.lost")
        await eventually(lambda: two_run(it), "what was lost is replaced", 60)
        it.process.send(signal.SIGTERM)
        assert await it.process.exit_code() == 0
        assert len(it.pids("stop")) == 2


async def two_run(it: object) -> bool:
    return await it.metric("rmqd_handler_processes") == 2  # type: ignore[attr-defined,no-any-return]
