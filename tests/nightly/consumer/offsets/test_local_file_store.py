"""The offset store of a broadcasting group: when it writes, how often, and what disk errors change."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rmqd.consumer.offsets.local_file_store import LocalFileOffsetStore, OffsetsFile
from rmqd.errors import InUseError
from tests.clock import ManualClock
from tests.consumer.offsets.disks import small_disk
from tests.consumer.offsets.test_local_file_store import A, Saves, clock, on_disk, saves, store
from tests.consumer.offsets.test_process_lock import holder

__all__ = ["clock", "saves", "store"]


@pytest.mark.process
async def test_a_real_disk_fills_up_turns_read_only_and_recovers(tmp_path: Path, clock: ManualClock) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = LocalFileOffsetStore(str(disk.path / "offsets"), "g", clock)
        await store.open()
        await store.commit(A, 1)
        disk.fill()
        assert not await store.persist({A: 2})
        disk.empty()
        assert await store.persist({A: 3})
        disk.read_only(True)
        assert not await store.persist({A: 4})
        disk.read_only(False)
        assert await store.persist({A: 5})
        await store.close()

        assert OffsetsFile(disk.path / "offsets" / "g").load() == {A: 5}


@pytest.mark.process
async def test_a_start_on_a_full_disk_continues_from_the_file(tmp_path: Path, clock: ManualClock) -> None:
    with small_disk(tmp_path / "disk") as disk:
        OffsetsFile(disk.path / "offsets" / "g").save({A: 1})
        disk.fill()
        store = LocalFileOffsetStore(str(disk.path / "offsets"), "g", clock)
        await store.open()

        assert await store.read(A) == 1


@pytest.mark.process
async def test_two_processes_do_not_share_a_directory(tmp_path: Path, clock: ManualClock) -> None:
    directory = tmp_path / "offsets"
    directory.mkdir()
    store = LocalFileOffsetStore(str(directory), "g", clock)
    with holder(directory / "process.lock") as other, pytest.raises(InUseError, match=f"process {other.pid} on"):
        await store.open()
    await store.open()


async def test_a_cancelled_commit_does_not_interrupt_its_write(
    store: LocalFileOffsetStore, saves: Saves, tmp_path: Path
) -> None:
    """Two simultaneous writes would corrupt the file."""
    saves.go.clear()
    drained = asyncio.create_task(store.commit(A, 1))
    await saves.begun(1)
    drained.cancel()
    await asyncio.wait((drained,))
    last = asyncio.create_task(store.commit(A, 2))
    await asyncio.sleep(0.01)
    assert len(saves.written) == 1
    saves.go.set()
    await last

    assert on_disk(tmp_path) == {A: 2}


async def test_groups_of_one_process_share_a_directory(tmp_path: Path, clock: ManualClock) -> None:
    stores = [LocalFileOffsetStore(str(tmp_path / "offsets"), group, clock) for group in ("g", "h", "i")]
    await asyncio.gather(*(one.open() for one in stores))
    for number, one in enumerate(stores):
        await one.commit(A, number)

    assert OffsetsFile(tmp_path / "offsets" / "i").load() == {A: 2}


async def test_offsets_are_written_though_the_loops_executor_is_full(store: LocalFileOffsetStore) -> None:
    """Calls of handlers hang in all of its threads."""
    go_on, loop = threading.Event(), asyncio.get_running_loop()
    hanging = [loop.run_in_executor(None, go_on.wait) for _ in range(64)]
    try:
        await store.commit(A, 7)
    finally:
        go_on.set()
        await asyncio.gather(*hanging)
    assert store.committed[A] == 7
