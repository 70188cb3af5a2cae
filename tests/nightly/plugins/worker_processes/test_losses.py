"""A worker process that dies, hangs or exceeds its memory limit affects only the message that caused it.

The core of these tests is in tests/plugins/worker_processes/test_losses.py.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from rmqd.consumer.handling.handler_failures import DEADLINE_CANCEL_MESSAGE
from rmqd.testing import make_batch, make_message
from tests.plugins.worker_processes.pools import pooled
from tests.plugins.worker_processes.scene import QUEUES, Scene, scene
from tests.plugins.worker_processes.scripted_handler import TYPED
from tests.plugins.worker_processes.test_losses import SEGFAULT, counts
from tests.waiting import eventually

pytestmark = pytest.mark.process
HANG = "import time; time.sleep(3600)"
HANG_IN_C = "import re; re.match('(a*)*b', 'a' * 60)"  # holds the interpreter's lock
CLOSE = "import sys, time; os.close(int(sys.argv[1])); time.sleep(3600)"  # its socket to the daemon
EAT = "eaten = bytearray(1 << 33)"


async def test_culprits_are_dead_letters_with_a_reason_and_others_are_handled_once(tmp_path: Path) -> None:
    culprits = {"segfault": SEGFAULT, "hang": HANG_IN_C, "eat": EAT}
    handler = {"processes": 2, "process_memory": "256MiB"}
    async with scene(tmp_path, handler=handler, consume_timeout="4s", max_reconsume_times=2) as it:
        for number in range(60):
            await it.send(f"m{number}")
            if number % 20 == 10:
                key = list(culprits)[number // 20]
                await it.send(key, culprits[key])
        others = {f"m{number}" for number in range(60)}
        await eventually(lambda: it.dead_letters().keys() == culprits.keys(), "the culprits are given up", 90)
        await eventually(lambda: set(it.keys()) == others, "all others are handled", 60)
        assert len(it.keys()) == len(others)
        assert {key: it.keys("begin").count(key) for key in culprits} == {"segfault": 2, "hang": 3, "eat": 2}
        letters = it.dead_letters()
        reasons = {key: one.properties["RMQD_REASON"] for key, one in letters.items()}
        twice = "the handler's process was lost 2 times at this message: it "
        assert reasons == {
            "segfault": f"{twice}was killed by SIGSEGV",
            "hang": "max_reconsume_times reached",
            "eat": f"{twice}reached its memory limit (handler.process_memory), and was ended",
        }
        stacks = {key: one.properties["RMQD_EXCEPTION"] for key, one in letters.items()}
        assert "Segmentation fault" in stacks["segfault"]
        assert "did not finish its call within consume_timeout (4 s), and was killed" in stacks["hang"]
        assert "MemoryError" in stacks["eat"]
        assert all("scripted_handler.py" in text and "HandlerProcessLostError" in text for text in stacks.values())
        for cause, lost in (("died", 2), ("hung", 3), ("memory", 2)):
            assert await it.metric("rmqd_handler_processes_lost_total", cause=cause) == lost
        assert await it.metric("rmqd_messages_handled_total", result="expired") == 2
        assert it.process.events("handler_process.lost")
        await eventually(lambda: two_run(it), "what was lost is replaced", 60)
        it.process.send(signal.SIGTERM)
        assert await it.process.exit_code() == 0
        assert len(it.pids("stop")) == 2


async def test_an_outage_that_hangs_calls_dead_letters_no_message(tmp_path: Path) -> None:
    """With a circuit breaker, a message may hang any number of times, and is handled after the outage."""
    down = tmp_path / "down"
    down.touch()
    hang = f"import time, pathlib\nwhile pathlib.Path({str(down)!r}).exists(): time.sleep(0.01)"
    circuit = {"consecutive": 1, "open_for": "100ms"}
    keys: dict[str, Any] = {"consume_timeout": "1s", "circuit_breaker": circuit}
    async with scene(tmp_path, handler={"processes": 1}, **keys) as it:
        await it.send("m", hang)
        await eventually(lambda: it.keys("begin") == ["m"] * 4, "it has hung three times, and is called again", 90)
        down.unlink()
        await eventually(lambda: it.keys() == ["m"], "it is handled", 60)
        assert not it.dead_letters()


async def test_a_message_cut_off_because_of_other_messages_is_not_blamed(tmp_path: Path) -> None:
    """The messages of a culprit's batch are called one by one, which takes longer than consume_timeout."""
    keys: dict[str, Any] = {
        "consume_timeout": "2s",
        "consume_message_batch_max_size": 4,
        "consume_message_batch_max_wait": "1s",
        "max_reconsume_times": 1,
    }
    async with scene(tmp_path, handler={"processes": 1}, **keys) as it:
        for number in range(4):
            await it.send(*(("culprit", HANG) if number == 0 else (f"m{number}", "import time; time.sleep(0.8)")), 0)
        await eventually(lambda: {"m1", "m2", "m3"} <= {*it.keys(), *it.dead_letters()}, "they are through", 60)
        await eventually(lambda: "culprit" in it.dead_letters(), "the culprit is given up", 60)
        assert it.dead_letters().keys() == {"culprit"}


async def test_a_process_that_closed_its_socket_and_did_not_end_is_replaced(tmp_path: Path) -> None:
    """The deadline passes while the daemon waits for the exit of the process."""
    async with scene(tmp_path, handler={"processes": 1}, consume_timeout="2s", max_reconsume_times=0) as it:
        await it.send("culprit", CLOSE, queue=0)
        await it.send("m", queue=0)
        await eventually(lambda: it.keys() == ["m"], "the slot has another process", 60)
        assert (await it.process.event("handler_process.lost"))["how"] == "closed its socket to rmqd"
        assert it.dead_letters().keys() == {"culprit"}


async def test_one_attempt_loses_one_process_with_retries_in_place(tmp_path: Path) -> None:
    async with scene(tmp_path, retry={"in_place": 3, "backoff": "10ms"}) as it:
        await it.send("culprit", SEGFAULT)
        await eventually(lambda: "culprit" in it.dead_letters(), "the culprit is given up", 60)
        assert it.dead_letters()["culprit"].reconsume_times == 1


async def test_an_orderly_queue_waits_for_the_culprit_and_continues_after_it(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "consume_mode": "orderly",
        "consume_message_batch_max_size": 4,
        "suspend_current_queue_time": "50ms",
    }
    async with scene(tmp_path, handler={"processes": 2}, **keys) as it:
        for number in range(6):
            await it.send("culprit" if number == 3 else f"m{number}", SEGFAULT if number == 3 else "pass", queue=0)
        await eventually(lambda: it.keys()[-1:] == ["m5"], "the last one is handled", 60)
        first_ends = list(dict.fromkeys(it.keys()))
        assert first_ends == ["m0", "m1", "m2", "m4", "m5"]
        await eventually(lambda: it.dead_letters().keys() == {"culprit"}, "the culprit is given up", 60)
        assert it.keys("begin").count("culprit") == 2


async def test_a_popped_culprit_is_a_dead_letter(tmp_path: Path) -> None:
    async with scene(tmp_path, consume_mode="pop") as it:
        for number in range(6):
            await it.send("culprit" if number == 3 else f"m{number}", SEGFAULT if number == 3 else "pass")
        await eventually(lambda: it.dead_letters().keys() == {"culprit"}, "the culprit is given up", 60)
        await eventually(lambda: sorted(it.keys()) == ["m0", "m1", "m2", "m4", "m5"], "the others are handled", 60)


async def test_processes_end_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    """Idle processes, the warm one, and one whose call holds the interpreter's lock."""
    async with scene(tmp_path) as it:
        await it.send("hang", HANG_IN_C)
        await eventually(lambda: it.keys("begin"), "a call hangs", 60)
        await eventually(lambda: len(children(it.process.pid)) == 3, "the warm one runs, too", 60)
        pids = children(it.process.pid)
        it.process.send(signal.SIGKILL)
        await eventually(lambda: not any(is_running(pid) for pid in pids), "all have ended", 60)


async def test_each_worker_has_separate_processes_and_a_reload_starts_new_ones(tmp_path: Path) -> None:
    log = "import logging; logging.getLogger('shop').debug('seen ' + message.keys)"
    async with scene(tmp_path, "--workers", "2", handler={"processes": 1}) as it:

        async def both_handle() -> bool:
            for queue in range(QUEUES):
                await it.send("both", log, queue=queue)
            return len(set(it.pids("end"))) == 2

        await eventually(both_handle, "a process of each worker handles", 60)
        assert await it.metric("rmqd_handler_processes") == 2
        it.rewrite(log="debug")
        it.process.send(signal.SIGHUP)
        assert (await it.process.event("config.reloaded"))["unchanged"] == ["pooled"]
        await it.send("c", log, queue=0)
        line = await it.process.event("seen c")
        assert (line["group"], line["logger"], line["level"]) == ("pooled", "shop", "debug")
        assert line["handler_pid"] in it.pids("end")
        before = set(it.pids("start"))
        it.rewrite(handler={"processes": 2})
        it.process.send(signal.SIGHUP)
        assert (await it.process.event("config.reloaded", 2))["restarted"] == ["pooled"]
        await eventually(lambda: counts(it, "rmqd_handler_processes", to=4), "the new ones run", 60)
        assert len(set(it.pids("start")) - before) == 4
        assert set(it.pids("stop")) == before


async def two_run(it: Scene) -> bool:
    return await it.metric("rmqd_handler_processes") == 2


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_hang_counts_an_attempt_only_for_the_message_of_the_call(tmp_path: Path) -> None:
    """Earlier messages are acknowledged, and later ones are handled again without a counted attempt."""
    begun = tmp_path / "begun"
    hang = f"import pathlib, threading\npathlib.Path({str(begun)!r}).touch()\nthreading.Event().wait()"
    batch = make_batch(*(make_message({"line": line}) for line in ("pass", hang, "pass")))
    async with pooled(TYPED) as handler:
        call = asyncio.create_task(handler.handle(batch))
        await eventually(begun.exists, "the second call hangs", 60)
        call.cancel(DEADLINE_CANCEL_MESSAGE)
        with pytest.raises(asyncio.CancelledError):
            await call
    assert {index: one.outcome.value for index, one in batch.decisions().items()} == {0: "ack", 1: "retry", 2: "again"}
