"""`parquet`: the manifest, cancelled calls, topics that were recreated, and S3."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from rmqd import Batch, Message, MessageQueue, testing
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import once_in_group
from rmqd_handlers.parquet import Parquet
from rmqd_handlers.parquet import stored_files as manifest
from rmqd_handlers.parquet.stored_files import LocalFolder
from tests.handlers.messages import QUEUE, make_batch, make_message
from tests.handlers.test_parquet import batch_of, entries, listed, started, stored
from tests.servers.s3 import BUCKET, S3Server
from tests.waiting import eventually

SOURCE = f"orders/~/broker-a/{QUEUE.queue_id}"


async def test_rows_of_a_cancelled_call_do_not_count_for_roll_size(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="1s", roll_size="100B") as handler:
        await handler.handle(batch_of(0))
        calls = []
        for offset, size in ((1, 60), (2, 60), (3, 30)):
            calls.append(asyncio.create_task(handler.handle(batch_of(offset, body="x" * size))))
            await eventually(lambda size=size: _added(handler) >= size, "the rows are added")  # type: ignore[misc]
            if offset == 1:
                calls.pop().cancel()
                await asyncio.sleep(0)
        await asyncio.gather(*calls)

    assert [one["rows"] for one in entries(tmp_path)] == [1, 2]


def _added(handler: Parquet) -> int:
    """The size of the messages in the queue's open file, in bytes."""
    filling = handler._queues[SOURCE].filling
    parts = () if filling is None else filling._parts.values()
    return sum(len(row.message.body) for rows in parts for row in rows)


async def test_messages_listed_by_another_member_are_not_written_again(tmp_path: Path) -> None:
    async with started(tmp_path) as one, started(tmp_path) as other:
        await one.handle(batch_of(0))
        await other.handle(batch_of(1, 2))
        await asyncio.sleep(1.1)  # a rebalance takes at least this long
        await one.handle(batch_of(2, 3))
        await other.handle(batch_of(4))
        await asyncio.sleep(1.1)
        await one.handle(batch_of(4, 5))  # starts at 4, because the other member did not commit

    assert sorted(listed(tmp_path)) == [0, 1, 2, 3, 4, 5]


async def test_forgotten_runs_are_read_again_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a filter, each message is a run. Entries are forgotten as a whole, not by message."""
    monkeypatch.setattr(manifest, "MAX_RUNS", 10)
    batches = [batch_of(*range(at, at + 40, 2)) for at in (0, 40, 80)]
    for is_first in (True, False):  # then all messages are repeated in a new process
        async with started(tmp_path) as handler:
            for batch in batches:
                await handler.handle(batch)
            assert not is_first or sum(map(len, handler._queues[SOURCE].listed._index._layers)) <= 20
            await handler.handle(batches[0])

    assert sorted(listed(tmp_path)) == list(range(0, 120, 2))


async def test_files_of_a_topic_and_its_recreated_topic_may_overlap(tmp_path: Path) -> None:
    """A message is found in its own topic's file even if a later file of the former topic starts at its offset."""
    former, anew = 1_767_225_600_000, 1_767_225_700_000
    for _ in range(2):  # the second time, all messages are listed
        async with started(tmp_path) as handler:
            await handler.handle(stored(former, 4, 5, 6))
            await handler.handle(stored(anew, *range(10)))

    assert sorted(listed(tmp_path)) == sorted([4, 5, 6, *range(10)])


def list_entries(path: Path, stored_ms: int, *runs: tuple[int, int]) -> None:
    """Write entries of files with one run each, stored one after the other. The files do not exist."""
    folder = path / "_manifest" / f"orders@broker-a@{QUEUE.queue_id}" / "000000"
    folder.mkdir(parents=True, exist_ok=True)
    for number, (first, last) in enumerate(runs):
        times = {"oldest_store_timestamp": stored_ms + number, "newest_store_timestamp": stored_ms + number}
        name = f"{first:020}-{last:020}-{stored_ms + number:08x}.json"
        (folder / name).write_text(json.dumps({"offsets": [(first, last)], **times}))


async def test_a_damaged_entry_is_named_and_its_messages_wait(tmp_path: Path) -> None:
    list_entries(tmp_path, 0, (0, 9))
    (entry,) = tmp_path.rglob("*.json")
    for content in (b"\xff", b"{}", b"[]"):
        entry.write_bytes(content)
        async with started(tmp_path, retry_for="10ms") as handler:
            with pytest.raises(OSError, match=rf"{entry.name} is damaged: ") as raised:
                await handler.handle(batch_of(3))
        assert getattr(raised.value, "rmqd_wait_seconds", 0) > 0
        assert entry.read_bytes() == content


@contextmanager
def lines_counted() -> Iterator[list[int]]:
    """The numbers of the manifest's code lines that this thread executes in the block."""
    lines: list[int] = []

    def count(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != manifest.__file__:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
        return count

    traced_before = sys.gettrace()
    sys.settrace(count)
    try:
        yield lines
    finally:
        sys.settrace(traced_before)


def test_a_lookup_checks_few_of_ten_thousand_runs(tmp_path: Path) -> None:
    """Also if a file of the former topic covers all of them."""
    former, anew = 1_767_225_600_000, 1_767_225_700_000
    list_entries(tmp_path, former, (0, 199_999))
    list_entries(tmp_path, anew, *((at, at + 9) for at in range(0, 100_000, 10)))
    listed_offsets = manifest.ListedOffsets(LocalFolder(tmp_path), SOURCE, QUEUE)
    listed_offsets.add_reading(0, 9, listed_offsets.read(0, 9))

    def has(offset: int, stored_ms: int) -> bool:
        [message] = stored(stored_ms, offset)
        return listed_offsets.has(message)

    with lines_counted() as lines:
        assert [has(99_995, former), has(99_995, anew + 9_999), has(99_995, anew)] == [True, True, False]
        assert [has(100_000, former), has(100_000, anew), has(200_000, former)] == [True, False, False]
    assert 0 < len(lines) < 200


async def test_reading_entries_costs_the_event_loop_little(tmp_path: Path) -> None:
    """The event loop serves all groups, so a thread reads the entries and prepares their index."""
    list_entries(tmp_path, 1_767_225_600_000, *((at, at + 9) for at in range(10, 10_010, 10)))
    async with started(tmp_path) as handler:
        with lines_counted() as lines:
            await handler.handle(batch_of(0, 1, 2))
        [last] = stored(1_767_225_600_999, 10_005)
        assert handler._queues[SOURCE].listed.has(last)

    assert 0 < len(lines) < 300


async def test_entries_added_during_a_read_are_known(tmp_path: Path) -> None:
    """One call completes its file while another call reads the entries of its messages."""
    listed_before, written = 1_767_225_600_000, 1_767_225_700_000
    list_entries(tmp_path, listed_before, (10, 19))
    async with started(tmp_path) as handler:
        await handler.handle(stored(written, 30))
        listed_offsets = handler._queues[SOURCE].listed
        reading = listed_offsets.read(0, 9)
        await handler.handle(stored(written + 1, 31))
        listed_offsets.add_reading(0, 9, reading)

    messages = [*stored(listed_before, 10), *stored(written, 30, 31), *stored(written, 31)]
    assert [listed_offsets.has(message) for message in messages] == [True, True, True, False]


async def test_entries_forgotten_during_a_read_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Happens if a reset repeats a queue's messages while a file of the queue is completed."""
    monkeypatch.setattr(manifest, "MAX_RUNS", 10)
    async with started(tmp_path) as handler:
        await handler.handle(stored(1_767_225_600_000, *range(0, 20, 2)))
        listed_offsets = handler._queues[SOURCE].listed
        reading = listed_offsets.read(0, 9)
        await handler.handle(stored(1_767_225_700_000, *range(30, 50, 2)))
        listed_offsets.add_reading(0, 9, reading)

    [first, *_] = stored(1_767_225_600_000, 0)
    assert listed_offsets.covers(0, 0)
    assert listed_offsets.has(first)


@pytest.mark.parametrize(("first", "then"), [(range(10), range(3, 5)), (range(5, 10), range(8))])
async def test_overlapping_files_are_known_once_written(tmp_path: Path, first: range, then: range) -> None:
    """Each message of both files is found without another read of the manifest."""
    former, anew = 1_767_225_600_000, 1_767_225_700_000
    async with started(tmp_path) as handler:
        await handler.handle(stored(former, *first))
        await handler.handle(stored(anew, *then))
        listed_offsets = handler._queues[SOURCE].listed

    assert [listed_offsets.has(message) for message in stored(former, *first)] == [True] * len(first)
    assert [listed_offsets.has(message) for message in stored(anew, *then)] == [True] * len(then)


async def test_a_topic_recreated_with_a_slow_clock_is_written(tmp_path: Path) -> None:
    """A broker on a new machine may store messages with earlier times than the former topic's file contains."""
    former, anew = 1_767_225_600_000, 1_767_225_500_000
    async with started(tmp_path) as handler:
        await handler.handle(stored(former, *range(10)))
        await handler.handle(stored(anew, *range(5)))

    assert sorted(listed(tmp_path)) == sorted([*range(10), *range(5)])


async def test_a_topic_recreated_while_a_file_is_open_gets_a_separate_file(tmp_path: Path) -> None:
    """Otherwise its later messages at the former offsets, with similar store times, would count as written."""
    former, anew = 1_767_225_600_000, 1_767_225_700_000
    async with started(tmp_path, roll_after="400ms") as handler:
        await asyncio.gather(handler.handle(stored(former, 3, 4, 5)), handler.handle(stored(anew, 0, 1, 2)))
        await handler.handle(stored(anew + 2, 3, 4))

    assert sorted(listed(tmp_path)) == [0, 1, 2, 3, 3, 4, 4, 5]
    assert sorted(one["offsets"] for one in entries(tmp_path)) == [[[0, 2]], [[3, 4]], [[3, 5]]]


async def test_messages_repeated_while_their_file_is_written_are_in_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Happens after a call is cancelled at its deadline, in a group that retries in place."""
    writes, goes_on = threading.Event(), threading.Event()
    sync = os.fsync

    def late(fd: int) -> None:
        writes.set()
        goes_on.wait(30)
        sync(fd)

    async with started(tmp_path) as handler:
        monkeypatch.setattr(os, "fsync", late)
        first = asyncio.create_task(handler.handle(batch_of(0, 1)))
        await asyncio.to_thread(writes.wait, 30)
        first.cancel()
        again = asyncio.create_task(handler.handle(batch_of(0, 1)))
        await asyncio.wait((again,), timeout=0.5)  # enough time to write them again
        goes_on.set()
        await again

    assert listed(tmp_path) == [0, 1]


async def test_messages_repeated_during_their_open_call_are_in_its_file_once(tmp_path: Path) -> None:
    """Happens after an operator resets the queue."""
    async with started(tmp_path, roll_after="500ms") as handler:
        await asyncio.gather(handler.handle(batch_of(0, 1)), handler.handle(batch_of(0, 1, 2)))

    assert listed(tmp_path) == [0, 1, 2]
    assert [one["rows"] for one in entries(tmp_path)] == [3]


@pytest.mark.process
async def test_calls_wait_until_a_killed_s3_server_is_restarted(s3_server: S3Server) -> None:
    folder = f"{BUCKET}/{uuid.uuid4().hex}"
    async with started(f"s3://{folder}", s3=s3_server.options(), roll_after="100ms") as handler:
        await handler.handle(batch_of(0, 1))
        s3_server.kill()
        during = [asyncio.create_task(handler.handle(batch_of(at))) for at in (2, 3)]
        await asyncio.to_thread(s3_server.start)
        await asyncio.gather(*during)
    async with started(f"s3://{folder}", s3=s3_server.options()) as handler:
        await handler.handle(batch_of(1, 3, 4))

    files = s3_server.files()
    rows = ds.dataset(folder, filesystem=files, format="parquet", partitioning="hive", exclude_invalid_files=True)
    assert sorted(rows.to_table(columns=["queue_offset"])["queue_offset"].to_pylist()) == [0, 1, 2, 3, 4]


@pytest.mark.process
async def test_a_large_file_is_uploaded_in_parts(s3_server: S3Server) -> None:
    folder = f"{BUCKET}/{uuid.uuid4().hex}"
    message = make_message(uuid.uuid4().bytes * (1 << 20))
    async with started(f"s3://{folder}", s3=s3_server.options(), compression="none") as handler:
        await handler.handle(make_batch(message))

    rows = ds.dataset(folder, filesystem=s3_server.files(), format="parquet", partitioning="hive").to_table()
    assert rows["body"].to_pylist() == [message.body]


@pytest.mark.process
async def test_a_missing_bucket_fails_the_start(s3_server: S3Server) -> None:
    with pytest.raises(FileNotFoundError, match="no bucket nowhere"):
        async with started("s3://nowhere/orders", s3=s3_server.options()):
            pass


async def test_a_folder_that_cannot_be_created_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        async with started(tmp_path / "file" / "orders"):
            pass


async def test_a_decimal_has_as_many_digits_as_its_type(tmp_path: Path) -> None:
    message = make_message(b'{"v": 12345678901234567890.5}')
    async with started(tmp_path, columns={"v": "$.v"}, types={"v": "decimal(38,18)"}) as handler:
        await handler.handle(make_batch(message))

    assert listed(tmp_path, "v") == [Decimal("12345678901234567890.5")]


async def test_a_cancelled_call_removes_its_rows(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="400ms") as handler:
        await handler.handle(batch_of(0))  # the next messages need no lookup, and are added at once
        stays, goes = (asyncio.create_task(handler.handle(batch_of(at))) for at in (1, 2))
        for _ in range(3):
            await asyncio.sleep(0)
        goes.cancel()
        await stays

    assert sorted(listed(tmp_path)) == [0, 1]


async def test_missing_offsets_are_written_when_they_arrive(tmp_path: Path) -> None:
    async with started(tmp_path) as handler:
        await handler.handle(batch_of(0, 1, 5))
        await handler.handle(batch_of(2, 5, 6))

    assert sorted(listed(tmp_path)) == [0, 1, 2, 5, 6]


async def test_each_day_has_a_separate_file(tmp_path: Path) -> None:
    noon = 1_767_268_800_000
    messages = [testing.make_message(b"x", queue_offset=at, store_timestamp=noon + at * 43_200_000) for at in range(3)]
    async with started(tmp_path) as handler:
        await handler.handle(Batch(messages, QUEUE))

    assert sorted((one["date"], one["rows"]) for one in entries(tmp_path)) == [("2026-01-01", 1), ("2026-01-02", 2)]


async def test_the_entry_is_written_after_the_file_and_no_temporary_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[str] = []
    rename = Path.rename

    def noting(path: Path, target: Path) -> Path:
        renamed.append(target.suffix)
        assert pq.ParquetFile(path).read().num_rows == 2 if target.suffix == ".parquet" else True
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noting)
    async with started(tmp_path) as handler:
        await handler.handle(batch_of(0, 1))

    assert renamed == [".parquet", ".json"]
    assert not list(tmp_path.rglob("*.tmp"))


def test_s3_keys_are_hidden() -> None:
    given = {"path": "s3://lake", "s3": {"secret_key": "geheim"}}

    assert "geheim" not in repr(Parquet.Options.model_validate(given))


async def test_each_queue_has_separate_files(tmp_path: Path) -> None:
    async with started(tmp_path) as handler:
        other = MessageQueue("%RETRY%shop", "broker-a", 0)
        await asyncio.gather(handler.handle(batch_of(0)), handler.handle(Batch(list(batch_of(0)), other)))

    assert [(one["source_topic"], one["topic"], one["queue_id"]) for one in entries(tmp_path)] == [
        ("%RETRY%shop", "orders", 0),
        ("orders", "orders", 3),
    ]
    assert len({one["file"] for one in entries(tmp_path)}) == 2


async def test_a_value_that_does_not_fit_its_type_is_a_dead_letter(tmp_path: Path) -> None:
    wrong: list[tuple[str, object]] = [
        ("int32", 2**31),
        ("int32", 1.5),
        ("int64", True),
        ("int64", "one"),
        ("float64", "NaN"),
        ("float64", Decimal("1e999")),
        ("decimal(4,2)", 100),
        ("decimal(4,2)", 1.005),
        ("boolean", "yes"),
        ("timestamp", "yesterday"),
        ("timestamp", 2**62),
        ("date", "1st"),
        ("string", "\ud800"),
    ]
    found = {}
    for number, (kind, value) in enumerate(wrong):
        text = value if isinstance(value, Decimal) else json.dumps(value)
        batch = make_batch(
            make_message(b"no JSON", queue_offset=0),
            make_message(f'{{"v": {text}}}'.encode(), queue_offset=1),
            make_message(b'{"v": null}', queue_offset=2),
        )
        folder, columns = tmp_path / str(number), {"v": "$.v", "offset": "queue_offset"}
        async with started(folder, columns=columns, types={"v": kind}) as handler:
            await handler.handle(batch)
        outcomes = {place: one.outcome.value for place, one in batch.decisions().items()}
        found[kind, str(value)] = outcomes, listed(folder, "offset")

    assert len(found) == len(wrong)
    assert found == dict.fromkeys(found, ({0: "dead_letter", 1: "dead_letter"}, [2]))


async def test_a_file_is_closed_at_roll_size(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="1h", roll_size="100B") as handler:
        await asyncio.gather(
            handler.handle(batch_of(0, 1, body="x" * 20)), handler.handle(batch_of(2, 3, body="x" * 40))
        )

    assert [one["rows"] for one in entries(tmp_path)] == [4]


async def test_end_calls_ends_an_open_call(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="1h") as handler:
        call = asyncio.create_task(handler.handle(batch_of(0)))
        while not call.done():
            handler.end_calls()
            await asyncio.sleep(0)
        await call

    assert listed(tmp_path) == [0]


async def test_a_manifest_separates_clusters_and_groups_and_reads_entries_of_0_1_0(tmp_path: Path) -> None:
    """All clusters and groups have the same messages of a queue with the same name."""
    for number, (cluster, group) in enumerate((("c1", "g1"), ("c2", "g1"), ("c1", "g2"))):
        once_in_group.set(once_for_group(group, partial(Identity, cluster, "", group)))
        for _ in range(2):
            async with started(tmp_path) as handler:
                await handler.handle(batch_of(*range(10)))
        assert sorted(listed(tmp_path)) == sorted([*range(10)] * (number + 1))
    [newest] = (tmp_path / "_manifest/c1/~/g2").rglob("*.json")
    former = tmp_path / f"_manifest/{QUEUE.topic}@{QUEUE.broker_name}@{QUEUE.queue_id}/000000"
    former.mkdir(parents=True)
    newest.rename(former / newest.name)
    async with started(tmp_path) as handler:
        await handler.handle(batch_of(*range(12)))
    assert sorted(listed(tmp_path)) == sorted([*range(10)] * 3 + [10, 11])
    once_in_group.set(once_for_group("g2", partial(Identity, "c1", "", "g2", replay="r1")))
    async with started(tmp_path) as handler:
        await handler.handle(batch_of(0))
    assert listed(tmp_path).count(0) == 4  # a replay also writes messages of 0.1.0 again


async def test_messages_of_a_recreated_topic_are_new_messages(tmp_path: Path) -> None:
    def stored_at(milliseconds: int) -> Sequence[Message]:
        return [testing.make_message(b"x", queue_offset=at, store_timestamp=milliseconds) for at in range(3)]

    async with started(tmp_path) as handler:
        for milliseconds in (1_767_225_600_000, 1_767_225_700_000):
            await handler.handle(Batch(list(stored_at(milliseconds)), QUEUE))

    assert sorted(listed(tmp_path)) == [0, 0, 1, 1, 2, 2]


async def test_a_failed_write_fails_the_batch_and_adds_no_entry(tmp_path: Path) -> None:
    async with started(tmp_path, retry_for="0s") as handler:
        (tmp_path / "date=2026-01-01").write_text("in the way")
        batch = batch_of(0)
        with pytest.raises(OSError, match="date=2026-01-01"):
            await handler.handle(batch)
        assert (entries(tmp_path), batch.decisions()) == ([], {})
        (tmp_path / "date=2026-01-01").unlink()
        await handler.handle(batch)

    assert listed(tmp_path) == [0]
