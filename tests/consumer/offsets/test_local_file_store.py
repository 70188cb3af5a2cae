"""The offset store of a broadcasting group: commits, shared writes and disk errors."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.offsets.local_file_store import LOG_INTERVAL_SECONDS, LocalFileOffsetStore, OffsetsFile
from rmqd.errors import OffsetStoreError
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.offsets.disks import disk_error

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[LocalFileOffsetStore]:
    """An opened offset store."""
    store = LocalFileOffsetStore(str(tmp_path / "offsets"), "g", clock)
    await store.open()
    yield store
    await store.close()


class Saves:
    """Wraps OffsetsFile.save: records each write, and can delay it or make it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[dict[MessageQueue, int]] = []
        self.error: OSError | None = None
        self.go = threading.Event()
        self.go.set()
        save = OffsetsFile.save

        def instead(file: OffsetsFile, offsets: Mapping[MessageQueue, int]) -> None:
            self.written.append(dict(offsets))
            assert self.go.wait(10)
            if self.error is not None:
                raise self.error
            save(file, offsets)

        monkeypatch.setattr(OffsetsFile, "save", instead)

    async def begun(self, count: int) -> None:
        """Wait until `count` writes have begun."""
        async with asyncio.timeout(5):
            while len(self.written) < count:  # noqa: ASYNC110 - they begin in a thread
                await asyncio.sleep(0.001)


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> Saves:
    return Saves(monkeypatch)


def on_disk(tmp_path: Path) -> dict[MessageQueue, int]:
    return OffsetsFile(tmp_path / "offsets" / "g").load()


async def test_a_new_group_has_no_offset(store: LocalFileOffsetStore) -> None:
    assert await store.read(A) is None


async def test_a_commit_is_on_the_disk_when_it_returns(
    store: LocalFileOffsetStore, clock: ManualClock, tmp_path: Path
) -> None:
    await store.commit(A, 7)

    assert on_disk(tmp_path) == {A: 7}
    assert (store.committed, store.committed_at) == ({A: 7}, {A: clock.wall()})
    assert await store.read(A) == 7


async def test_the_next_process_continues_at_the_stored_offsets(
    store: LocalFileOffsetStore, clock: ManualClock, tmp_path: Path
) -> None:
    assert await store.persist({A: 3, B: 0})

    following = LocalFileOffsetStore(str(tmp_path / "offsets"), "g", clock)
    await following.open()
    assert (await following.read(A), await following.read(B)) == (3, 0)


async def test_an_unchanged_offset_is_not_written(
    store: LocalFileOffsetStore, saves: Saves, clock: ManualClock, tmp_path: Path
) -> None:
    """Neither by this process nor by the next one."""
    for _ in range(3):
        assert await store.persist({A: 3})
    await store.commit(A, 3)
    following = LocalFileOffsetStore(str(tmp_path / "offsets"), "g", clock)
    await following.open()
    assert await following.persist({A: 3})

    assert saves.written == [{A: 3}]


async def test_only_a_reset_lowers_an_offset(store: LocalFileOffsetStore, tmp_path: Path) -> None:
    await store.commit(A, 7)
    await store.commit(A, 5)
    await store.commit_upward(A, 6)
    await store.persist({A: 4})
    assert on_disk(tmp_path) == {A: 7}

    await store.commit(A, 2, downward=True)
    assert on_disk(tmp_path) == {A: 2}
    await store.persist({A: 3})
    assert on_disk(tmp_path) == {A: 3}


async def test_a_released_queue_keeps_its_stored_offset(store: LocalFileOffsetStore, tmp_path: Path) -> None:
    """If a broker leaves the route, its queues are released, and their offsets stay in the file."""
    await store.persist({A: 7, B: 8})
    store.forget(A)
    await store.persist({B: 9})

    assert await store.read(A) == 7
    assert on_disk(tmp_path) == {A: 7, B: 9}


async def test_many_commits_share_a_write(store: LocalFileOffsetStore, saves: Saves, tmp_path: Path) -> None:
    """At a start and at a stop, all queues commit at once."""
    queues = [MessageQueue("orders", "broker-a", number) for number in range(50)]
    saves.go.clear()
    first = asyncio.create_task(store.commit(A, 1))
    await saves.begun(1)
    others = [asyncio.create_task(store.commit(queue, 5)) for queue in queues]
    await asyncio.sleep(0)
    saves.go.set()
    await asyncio.gather(first, *others)

    assert len(saves.written) == 2
    assert on_disk(tmp_path) == dict.fromkeys(queues, 5)


async def test_the_event_loop_does_not_wait_for_the_disk(store: LocalFileOffsetStore, saves: Saves) -> None:
    saves.go.clear()
    writing = asyncio.create_task(store.persist({A: 1}))
    await saves.begun(1)
    for _ in range(100):  # iterations of the running event loop
        await asyncio.sleep(0)
    assert not writing.done()
    saves.go.set()
    assert await writing


async def test_close_waits_for_a_write_and_stores_pending_commits(
    store: LocalFileOffsetStore, saves: Saves, tmp_path: Path
) -> None:
    saves.go.clear()
    cut = asyncio.create_task(store.persist({A: 1}))
    await saves.begun(1)
    cut.cancel()
    unfinished = asyncio.create_task(store.commit(A, 2))
    await asyncio.sleep(0)
    unfinished.cancel()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    saves.go.set()
    await closing

    assert on_disk(tmp_path) == {A: 2}
    await asyncio.gather(cut, unfinished, return_exceptions=True)


async def test_an_offset_that_was_not_written_does_not_count_as_committed(
    store: LocalFileOffsetStore, saves: Saves
) -> None:
    await store.commit(A, 1)
    at = dict(store.committed_at)
    saves.error = disk_error()
    await store.persist({A: 2})

    assert (store.committed, store.committed_at) == ({A: 1}, at)
    assert store.problem is not None
    assert store.problem.evidence.endswith("offsets.json cannot be written: No space left on device")
    saves.error = None
    await store.persist({A: 2})
    assert store.problem is None


async def test_a_new_queue_does_not_start_before_its_start_offset_is_stored(
    store: LocalFileOffsetStore, saves: Saves
) -> None:
    """Later messages would be skipped if the process ended before the next write."""
    saves.error = disk_error()
    with pytest.raises(OffsetStoreError, match=r"offsets\.json cannot be written: No space left on device"):
        await store.commit(A, 7)

    assert await store.read(A) is None


async def test_a_damaged_file_without_a_backup_raises_an_error(tmp_path: Path, clock: ManualClock) -> None:
    OffsetsFile(tmp_path / "offsets" / "g").save({A: 1})
    (tmp_path / "offsets" / "g" / "offsets.json").write_bytes(b"")

    with pytest.raises(OffsetStoreError, match="is damaged: it is empty"):
        await LocalFileOffsetStore(str(tmp_path / "offsets"), "g", clock).open()


async def test_a_group_is_no_longer_new_once_start_offsets_are_stored(
    store: LocalFileOffsetStore, tmp_path: Path
) -> None:
    """Also if it has no queues. Committed offsets are kept."""
    assert store.is_new
    await store.store_start_offsets({})
    assert not store.is_new
    assert on_disk(tmp_path) == {}
    await store.commit(A, 7)
    await store.store_start_offsets({A: 3, B: 4})
    assert on_disk(tmp_path) == {A: 7, B: 4}


async def test_a_group_stays_new_if_start_offsets_cannot_be_written(store: LocalFileOffsetStore, saves: Saves) -> None:
    saves.error = disk_error()
    with pytest.raises(OffsetStoreError, match=r"offsets\.json cannot be written: No space left on device"):
        await store.store_start_offsets({A: 3})
    assert store.is_new


async def test_a_release_confirms_that_its_offset_is_stored(store: LocalFileOffsetStore, tmp_path: Path) -> None:
    """Only this member writes the file, so a release waits for no other commit."""
    assert await store.commit_upward(A, 7)
    assert on_disk(tmp_path) == {A: 7}
    assert store.may_have_committed(A, 3)
    assert not store.may_be_lost(A)
    assert not await store.wait_for_commits(A, 7, 0.0)


async def test_open_creates_the_directory_and_locks_it(tmp_path: Path, clock: ManualClock) -> None:
    await LocalFileOffsetStore(str(tmp_path / "state" / "offsets"), "g", clock).open()
    with (tmp_path / "state" / "offsets" / "process.lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_the_offsets_file_of_another_cluster_is_set_aside(
    tmp_path: Path, clock: ManualClock, saves: Saves
) -> None:
    """A file of 0.1.0 names no cluster. It belongs to the first cluster that opens it, even without a commit."""

    async def on(cluster: str, offset: int | None = None) -> tuple[bool, int | None]:
        store = LocalFileOffsetStore(str(tmp_path), "g", clock, lambda: cluster and f"{cluster}/~/g")
        await store.open()
        stored = await store.read(A)
        is_new = store.is_new
        await store.persist({} if offset is None else {A: offset})
        await store.close()
        return is_new, stored

    assert await on("", 7) == (True, None)
    assert "cluster" not in (tmp_path / "g" / "offsets.json").read_text()
    with capture_logs() as logs:
        assert await on("c1") == (False, 7)
        assert await on("c1") == (False, 7)
    assert (logs, len(saves.written)) == ([], 2)
    assert await on("c2", 3) == (True, None)
    assert await on("c1", 9) == (False, 7)
    assert await on("") == (False, 9)  # the name servers no longer have a cluster id
    assert await on("c2") == (False, 3)


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


async def test_disk_failures_are_counted(store: LocalFileOffsetStore, saves: Saves) -> None:
    assert store.failures == 0
    saves.error = disk_error()
    for offset in (1, 2):
        await store.persist({A: offset})
    assert store.failures == 2


async def test_the_next_process_knows_when_the_offsets_were_stored(
    store: LocalFileOffsetStore, clock: ManualClock, tmp_path: Path
) -> None:
    await store.commit(A, 7)
    following = LocalFileOffsetStore(str(tmp_path / "offsets"), "g", clock)
    await following.open()
    assert following.committed_at == {A: (tmp_path / "offsets" / "g" / "offsets.json").stat().st_mtime}


async def test_a_file_that_cannot_be_set_aside_for_another_cluster_is_an_error(
    tmp_path: Path, clock: ManualClock
) -> None:
    OffsetsFile(tmp_path / "g").save({A: 1})
    (tmp_path / "g" / "offsets.json.c1" / "blocks").mkdir(parents=True)
    identity = "c1"
    store = LocalFileOffsetStore(str(tmp_path), "g", clock, lambda: identity)
    await store.open()
    await store.read(A)
    identity = "c2"
    with pytest.raises(OffsetStoreError, match=r"offsets\.json cannot be renamed: "):
        await store.read(A)
