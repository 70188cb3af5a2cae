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


async def test_what_a_cancelled_call_took_along_does_not_close_a_file(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="1s", roll_size="100B") as handler:
        await handler.handle(batch_of(0))
        calls = []
        for offset, size in ((1, 60), (2, 60), (3, 30)):
            calls.append(asyncio.create_task(handler.handle(batch_of(offset, body="x" * size))))
            await eventually(lambda size=size: _added(handler) >= size, "its rows are in the file")  # type: ignore[misc]
            if offset == 1:
                calls.pop().cancel()
                await asyncio.sleep(0)
        await asyncio.gather(*calls)

    assert [one["rows"] for one in entries(tmp_path)] == [1, 2]


def _added(handler: Parquet) -> int:
    """Bytes that wait in the queue's open file, as its calls say."""
    filling = handler._queues[SOURCE].filling
    parts = () if filling is None else filling._parts.values()
    return sum(len(row.message.body) for rows in parts for row in rows)


async def test_what_another_member_has_listed_meanwhile_is_not_written_again(tmp_path: Path) -> None:
    async with started(tmp_path) as one, started(tmp_path) as other:
        await one.handle(batch_of(0))
        await other.handle(batch_of(1, 2))
        await asyncio.sleep(1.1)  # a rebalance takes no less
        await one.handle(batch_of(2, 3))
        await other.handle(batch_of(4))
        await asyncio.sleep(1.1)
        await one.handle(batch_of(4, 5))  # it follows what this one had, as the other one did not commit

    assert sorted(listed(tmp_path)) == [0, 1, 2, 3, 4, 5]


async def test_more_runs_than_are_kept_are_read_again_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a filter each message is a run. An entry is forgotten as a whole, and not as its messages come again."""
    monkeypatch.setattr(manifest, "MAX_RUNS", 10)
    batches = [batch_of(*range(at, at + 40, 2)) for at in (0, 40, 80)]
    for is_first in (True, False):  # then another process gets it all again
        async with started(tmp_path) as handler:
            for batch in batches:
                await handler.handle(batch)
            assert not is_first or sum(map(len, handler._queues[SOURCE].listed._index._layers)) <= 20
            await handler.handle(batches[0])

    assert sorted(listed(tmp_path)) == list(range(0, 120, 2))


async def test_files_of_a_topic_and_of_the_one_made_anew_may_overlap(tmp_path: Path) -> None:
    """What has an offset that a later file of the former topic begins with is found in its own topic's file."""
    former, anew = 1_767_225_600_000, 1_767_225_700_000
    for _ in range(2):  # the second time all is there
        async with started(tmp_path) as handler:
            await handler.handle(stored(former, 4, 5, 6))
            await handler.handle(stored(anew, *range(10)))

    assert sorted(listed(tmp_path)) == sorted([4, 5, 6, *range(10)])


def list_entries(path: Path, stored_ms: int, *runs: tuple[int, int]) -> None:
    """Entries of files with one run each, that were stored one after the other. The files are not there."""
    folder = path / "_manifest" / f"orders@broker-a@{QUEUE.queue_id}" / "000000"
    folder.mkdir(parents=True, exist_ok=True)
    for number, (first, last) in enumerate(runs):
        times = {"oldest_store_timestamp": stored_ms + number, "newest_store_timestamp": stored_ms + number}
        name = f"{first:020}-{last:020}-{stored_ms + number:08x}.json"
        (folder / name).write_text(json.dumps({"offsets": [(first, last)], **times}))


@contextmanager
def lines_counted() -> Iterator[list[int]]:
    """The lines of the manifest's code that this thread executes meanwhile, by their numbers."""
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


def test_a_message_is_looked_for_in_few_of_ten_thousand_runs(tmp_path: Path) -> None:
    """Also where a file of the former topic reaches over all of them."""
    former, anew = 1_767_225_600_000, 1_767_225_700_000
    list_entries(tmp_path, former, (0, 199_999))
    list_entries(tmp_path, anew, *((at, at + 9) for at in range(0, 100_000, 10)))
    listed_offsets = manifest.ListedOffsets(LocalFolder(tmp_path), SOURCE, QUEUE)
    listed_offsets.learn(0, 9, listed_offsets.read(0, 9))

    def has(offset: int, stored_ms: int) -> bool:
        [message] = stored(stored_ms, offset)
        return listed_offsets.has(message)

    with lines_counted() as lines:
        assert [has(99_995, former), has(99_995, anew + 9_999), has(99_995, anew)] == [True, True, False]
        assert [has(100_000, former), has(100_000, anew), has(200_000, former)] == [True, False, False]
    assert 0 < len(lines) < 200


async def test_the_event_loop_has_little_to_do_with_entries_that_are_read(tmp_path: Path) -> None:
    """It stands for all groups meanwhile: entries are taken over as the thread that reads them left them."""
    list_entries(tmp_path, 1_767_225_600_000, *((at, at + 9) for at in range(10, 10_010, 10)))
    async with started(tmp_path) as handler:
        with lines_counted() as lines:
            await handler.handle(batch_of(0, 1, 2))
        [last] = stored(1_767_225_600_999, 10_005)
        assert handler._queues[SOURCE].listed.has(last)

    assert 0 < len(lines) < 300


async def test_entries_noted_while_others_are_read_are_known(tmp_path: Path) -> None:
    """The file of one call becomes whole while another call reads what is there of its own messages."""
    listed_before, written = 1_767_225_600_000, 1_767_225_700_000
    list_entries(tmp_path, listed_before, (10, 19))
    async with started(tmp_path) as handler:
        await handler.handle(stored(written, 30))
        listed_offsets = handler._queues[SOURCE].listed
        reading = listed_offsets.read(0, 9)
        await handler.handle(stored(written + 1, 31))
        listed_offsets.learn(0, 9, reading)

    messages = [*stored(listed_before, 10), *stored(written, 30, 31), *stored(written, 31)]
    assert [listed_offsets.has(message) for message in messages] == [True, True, True, False]


async def test_entries_forgotten_while_their_offsets_are_read_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when an operator's reset has a queue's messages come again, and a file of it becomes whole meanwhile."""
    monkeypatch.setattr(manifest, "MAX_RUNS", 10)
    async with started(tmp_path) as handler:
        await handler.handle(stored(1_767_225_600_000, *range(0, 20, 2)))
        listed_offsets = handler._queues[SOURCE].listed
        reading = listed_offsets.read(0, 9)
        await handler.handle(stored(1_767_225_700_000, *range(30, 50, 2)))
        listed_offsets.learn(0, 9, reading)

    [first, *_] = stored(1_767_225_600_000, 0)
    assert listed_offsets.knows(0, 0)
    assert listed_offsets.has(first)


@pytest.mark.parametrize(("first", "then"), [(range(10), range(3, 5)), (range(5, 10), range(8))])
async def test_files_that_overlap_are_known_as_they_are_written(tmp_path: Path, first: range, then: range) -> None:
    """Each message of both is found without another look at the manifest."""
    former, anew = 1_767_225_600_000, 1_767_225_700_000
    async with started(tmp_path) as handler:
        await handler.handle(stored(former, *first))
        await handler.handle(stored(anew, *then))
        listed_offsets = handler._queues[SOURCE].listed

    assert [listed_offsets.has(message) for message in stored(former, *first)] == [True] * len(first)
    assert [listed_offsets.has(message) for message in stored(anew, *then)] == [True] * len(then)


async def test_a_topic_made_anew_by_a_clock_that_is_behind_is_written(tmp_path: Path) -> None:
    """As after a broker was set up on another machine: earlier than all that the former topic's file has."""
    former, anew = 1_767_225_600_000, 1_767_225_500_000
    async with started(tmp_path) as handler:
        await handler.handle(stored(former, *range(10)))
        await handler.handle(stored(anew, *range(5)))

    assert sorted(listed(tmp_path)) == sorted([*range(10), *range(5)])


async def test_a_topic_made_anew_while_a_file_gathers_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Else what it has later at the former offsets would count as written, where it is as young."""
    former, anew = 1_767_225_600_000, 1_767_225_700_000
    async with started(tmp_path, roll_after="400ms") as handler:
        await asyncio.gather(handler.handle(stored(former, 3, 4, 5)), handler.handle(stored(anew, 0, 1, 2)))
        await handler.handle(stored(anew + 2, 3, 4))

    assert sorted(listed(tmp_path)) == [0, 1, 2, 3, 3, 4, 4, 5]
    assert sorted(one["offsets"] for one in entries(tmp_path)) == [[[0, 2]], [[3, 4]], [[3, 5]]]


async def test_messages_that_come_again_while_their_file_is_written_are_in_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a call that was cut short at its deadline, in a group that repeats in place."""
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
        await asyncio.wait((again,), timeout=0.5)  # time enough to write them once more
        goes_on.set()
        await again

    assert listed(tmp_path) == [0, 1]


async def test_messages_that_come_again_beside_their_open_call_are_in_its_file_once(tmp_path: Path) -> None:
    """As after an operator's reset of the queue."""
    async with started(tmp_path, roll_after="500ms") as handler:
        await asyncio.gather(handler.handle(batch_of(0, 1)), handler.handle(batch_of(0, 1, 2)))

    assert listed(tmp_path) == [0, 1, 2]
    assert [one["rows"] for one in entries(tmp_path)] == [3]


@pytest.mark.process
async def test_a_bucket_that_is_killed_and_comes_back_is_waited_for(s3_server: S3Server) -> None:
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
async def test_a_large_file_goes_over_in_parts(s3_server: S3Server) -> None:
    folder = f"{BUCKET}/{uuid.uuid4().hex}"
    message = make_message(uuid.uuid4().bytes * (1 << 20))
    async with started(f"s3://{folder}", s3=s3_server.options(), compression="none") as handler:
        await handler.handle(make_batch(message))

    rows = ds.dataset(folder, filesystem=s3_server.files(), format="parquet", partitioning="hive").to_table()
    assert rows["body"].to_pylist() == [message.body]


@pytest.mark.process
async def test_a_bucket_that_does_not_exist_fails_the_start(s3_server: S3Server) -> None:
    with pytest.raises(FileNotFoundError, match="no bucket nowhere"):
        async with started("s3://nowhere/orders", s3=s3_server.options()):
            pass


async def test_a_folder_that_cannot_be_made_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        async with started(tmp_path / "file" / "orders"):
            pass


async def test_a_decimal_has_as_many_digits_as_its_type(tmp_path: Path) -> None:
    message = make_message(b'{"v": 12345678901234567890.5}')
    async with started(tmp_path, columns={"v": "$.v"}, types={"v": "decimal(38,18)"}) as handler:
        await handler.handle(make_batch(message))

    assert listed(tmp_path, "v") == [Decimal("12345678901234567890.5")]


async def test_a_call_that_is_cancelled_takes_its_rows_along(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="400ms") as handler:
        await handler.handle(batch_of(0))  # what follows it is not looked up, and so is added at once
        stays, goes = (asyncio.create_task(handler.handle(batch_of(at))) for at in (1, 2))
        for _ in range(3):
            await asyncio.sleep(0)
        goes.cancel()
        await stays

    assert sorted(listed(tmp_path)) == [0, 1]


async def test_offsets_that_were_passed_over_are_written_when_they_come(tmp_path: Path) -> None:
    async with started(tmp_path) as handler:
        await handler.handle(batch_of(0, 1, 5))
        await handler.handle(batch_of(2, 5, 6))

    assert sorted(listed(tmp_path)) == [0, 1, 2, 5, 6]


async def test_days_are_in_files_of_their_own(tmp_path: Path) -> None:
    noon = 1_767_268_800_000
    messages = [testing.make_message(b"x", queue_offset=at, store_timestamp=noon + at * 43_200_000) for at in range(3)]
    async with started(tmp_path) as handler:
        await handler.handle(Batch(messages, QUEUE))

    assert sorted((one["date"], one["rows"]) for one in entries(tmp_path)) == [("2026-01-01", 1), ("2026-01-02", 2)]


async def test_the_entry_comes_after_the_file_and_nothing_unfinished_is_left(
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


def test_the_keys_of_s3_are_not_shown() -> None:
    given = {"path": "s3://lake", "s3": {"secret_key": "geheim"}}

    assert "geheim" not in repr(Parquet.Options.model_validate(given))


async def test_queues_have_files_of_their_own(tmp_path: Path) -> None:
    async with started(tmp_path) as handler:
        other = MessageQueue("%RETRY%shop", "broker-a", 0)
        await asyncio.gather(handler.handle(batch_of(0)), handler.handle(Batch(list(batch_of(0)), other)))

    assert [(one["source_topic"], one["topic"], one["queue_id"]) for one in entries(tmp_path)] == [
        ("%RETRY%shop", "orders", 0),
        ("orders", "orders", 3),
    ]
    assert len({one["file"] for one in entries(tmp_path)}) == 2


async def test_what_a_type_cannot_be_is_a_dead_letter_and_the_rest_is_written(tmp_path: Path) -> None:
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


async def test_a_file_is_closed_at_its_size(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="1h", roll_size="100B") as handler:
        await asyncio.gather(
            handler.handle(batch_of(0, 1, body="x" * 20)), handler.handle(batch_of(2, 3, body="x" * 40))
        )

    assert [one["rows"] for one in entries(tmp_path)] == [4]


async def test_calls_that_are_waited_for_end(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="1h") as handler:
        call = asyncio.create_task(handler.handle(batch_of(0)))
        while not call.done():
            handler.end_calls()
            await asyncio.sleep(0)
        await call

    assert listed(tmp_path) == [0]


async def test_a_manifest_tells_clusters_and_groups_apart_and_has_what_0_1_0_wrote(tmp_path: Path) -> None:
    """All of them have the same messages of a queue of the same name."""
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
    assert listed(tmp_path).count(0) == 4  # a replay writes again also what 0.1.0 wrote


async def test_messages_of_a_topic_that_was_made_anew_are_other_ones(tmp_path: Path) -> None:
    def stored_at(milliseconds: int) -> Sequence[Message]:
        return [testing.make_message(b"x", queue_offset=at, store_timestamp=milliseconds) for at in range(3)]

    async with started(tmp_path) as handler:
        for milliseconds in (1_767_225_600_000, 1_767_225_700_000):
            await handler.handle(Batch(list(stored_at(milliseconds)), QUEUE))

    assert sorted(listed(tmp_path)) == [0, 0, 1, 1, 2, 2]


async def test_a_disk_that_cannot_be_written_fails_the_batch_and_lists_nothing(tmp_path: Path) -> None:
    async with started(tmp_path, retry_for="0s") as handler:
        (tmp_path / "date=2026-01-01").write_text("in the way")
        batch = batch_of(0)
        with pytest.raises(OSError, match="date=2026-01-01"):
            await handler.handle(batch)
        assert (entries(tmp_path), batch.decisions()) == ([], {})
        (tmp_path / "date=2026-01-01").unlink()
        await handler.handle(batch)

    assert listed(tmp_path) == [0]
