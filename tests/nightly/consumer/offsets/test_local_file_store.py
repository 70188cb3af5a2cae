"""The offset store of a broadcasting group: what is stored when, by how many writes, and what a bad disk does to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.consumer.offsets.local_file_store import LocalFileOffsetStore, OffsetsFile
from rmqd.errors import InUseError
from tests.clock import ManualClock
from tests.consumer.offsets.disks import small_disk
from tests.consumer.offsets.test_local_file_store import A, clock, store
from tests.consumer.offsets.test_process_lock import holder

__all__ = ["clock", "store"]


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
async def test_a_start_on_a_full_disk_goes_on_from_the_file(tmp_path: Path, clock: ManualClock) -> None:
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
