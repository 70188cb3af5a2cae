"""The offset store of a broadcasting group: when it writes, how often, and what disk errors change."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.offsets.local_file_store import LOG_INTERVAL_SECONDS, LocalFileOffsetStore, OffsetsFile
from rmqd.errors import InUseError, OffsetStoreError
from tests.clock import ManualClock
from tests.consumer.offsets.disks import disk_error, small_disk
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


async def test_a_full_disk_is_logged_once_and_then_once_a_minute(
    store: LocalFileOffsetStore, saves: Saves, clock: ManualClock, tmp_path: Path
) -> None:
    await store.commit(A, 1)
    saves.error = disk_error()
    with capture_logs() as logs:
        for number in range(2, 27):  # two minutes of failures
            assert not await store.persist({A: number})
            clock.turn(5)
        assert [line["event"] for line in logs] == ["offset.not_stored"] * 3
        assert [line["for_seconds"] for line in logs] == [0, LOG_INTERVAL_SECONDS, 2 * LOG_INTERVAL_SECONDS]
        saves.error = disk_error(errno.EROFS)
        assert not await store.persist({A: 27})
        saves.error = None
        assert await store.persist({A: 28})
        assert await store.persist({A: 29})

    assert (logs[0]["log_level"], logs[0]["error"]) == ("error", "No space left on device")
    assert logs[0]["file"] == str(tmp_path / "offsets" / "g" / "offsets.json")
    assert (logs[3]["event"], logs[3]["error"]) == ("offset.not_stored", "Read-only file system")
    assert (logs[4]["event"], logs[4]["after_seconds"]) == ("offset.stored_again", 125)
    assert len(logs) == 5
    assert on_disk(tmp_path) == {A: 29}


async def test_a_reset_holds_although_it_could_not_be_stored_yet(
    store: LocalFileOffsetStore, saves: Saves, tmp_path: Path
) -> None:
    await store.commit(A, 7)
    saves.error = disk_error()
    with pytest.raises(OffsetStoreError):
        await store.commit(A, 2, downward=True)
    assert await store.read(A) == 2
    saves.error = None
    await store.persist({A: 3})

    assert on_disk(tmp_path) == {A: 3}


async def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalFileOffsetStore(str(tmp_path / "file" / "offsets"), "g", clock)

    with pytest.raises(OffsetStoreError, match=r"/file/offsets cannot be used: Not a directory"):
        await store.open()


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


async def test_disk_failures_are_counted(store: LocalFileOffsetStore, saves: Saves) -> None:
    assert store.failures == 0
    saves.error = disk_error()
    for offset in (1, 2):
        await store.persist({A: offset})
    assert store.failures == 2
