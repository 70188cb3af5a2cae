"""The files that describe an archive, as rmqd 0.1.0 wrote them, and entries of compacted files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rmqd.handler_api.destinations.archive_manifest import (
    BatchManifest,
    CompactionPlan,
    Layout,
    ManifestEntry,
    decode,
    encode,
    entry_stem,
    merge_entries,
    offsets_in_stem,
)

QUERY = "3f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
ENTRY = (
    '{"file": "date=2026-01-01/topic=orders/broker-a-3-00000000000000000000-00000000000000000003-448a2f9e.parquet", '
    '"rows": 4, "size_bytes": 6259, "date": "2026-01-01", "topic": "orders", "source_topic": "orders", '
    '"broker_name": "broker-a", "queue_id": 3, "offsets": [[0, 3]], "oldest_store_timestamp": 1767225600000, '
    '"newest_store_timestamp": 1767225600003}'
)
MANIFEST = (
    f'{{"version": 1, "staged": "archive/{QUERY}/000000006-ecca7082b1a7", "moves": [["topic=1/part-0.parquet", '
    f'"topic=1/{QUERY}-000000006-ecca7082b1a7-00000-000.snappy.parquet"]], "replaced": [], "rows": 6}}'
)
PLAN = (
    '{"version": 1, "sources": ["topic=1/a.parquet", "topic=1/b.parquet"], "written": "written/part-0.parquet", '
    '"target": "topic=1/compacted-d2531adf87364a3893a84bf43f3c8d85.parquet", "rows": 18}'
)
LAYOUT = '{"partition_by": ["topic"], "columns": {"id": "bigint", "topic": "string", "at": "timestamp"}}'


@pytest.mark.parametrize(
    ("kind", "text"),
    [(ManifestEntry, ENTRY), (BatchManifest, MANIFEST), (CompactionPlan, PLAN), (Layout, LAYOUT)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_files_of_0_1_0_are_read_and_written_without_a_change(kind: type, text: str) -> None:
    assert json.loads(encode(decode(kind, text.encode(), "it"))) == json.loads(text)


def test_an_entry_without_the_oldest_time_is_read() -> None:
    entry = json.loads(ENTRY)
    del entry["oldest_store_timestamp"]
    assert decode(ManifestEntry, json.dumps(entry).encode(), "it").oldest_store_timestamp == 0


def test_an_entry_of_a_compacted_file_keeps_the_store_times_of_each_run() -> None:
    """Otherwise, a recreated topic's message between two files would count as listed."""
    first = decode(ManifestEntry, ENTRY.encode(), "it")
    second = replace(first, offsets=((4, 5), (7, 7)), rows=3, oldest_store_timestamp=1767225700000)
    once = merge_entries([first, second], "there", 9)
    assert (once.file, once.rows, once.size_bytes) == ("there", 7, 9)
    assert once.offsets == ((0, 3), (4, 5), (7, 7))
    times = ((1767225600000, 1767225600003), *[(1767225700000, 1767225600003)] * 2)
    assert once.stored == times
    again = merge_entries([decode(ManifestEntry, encode(once), "it"), second], "there", 9)
    assert again.stored == (*times, *times[1:])


def test_an_entry_is_named_by_its_offsets() -> None:
    stem = entry_stem(5, 17, "x")
    assert offsets_in_stem(stem) == (5, 17)
    assert [offsets_in_stem(one) for one in ("", "by-hand", "a-b-c")] == [None] * 3
