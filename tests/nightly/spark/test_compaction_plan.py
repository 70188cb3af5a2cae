"""The selection of the archive's files that become one. Pure."""

from __future__ import annotations

import pytest

from rmqd.errors import RmqdError
from rmqd.handler_api.destinations.archive_manifest import CompactionPlan, decode, encode, last_batches
from rmqd.spark.pipelines.compaction import CompactionChunk, chunks_to_compact
from rmqd.spark.session.hadoop_folder import FileFacts

QUERY = "3f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
OTHER = "4f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"


def name(batch: int, query: str = QUERY) -> str:
    return f"{query}-{batch:09}-00000000abcd-00000-000.snappy.parquet"


def facts(size: int, modified: int = 1) -> FileFacts:
    return FileFacts(size, modified)


def test_small_files_of_a_partition_are_merged_up_to_the_wanted_size() -> None:
    """Files of different partitions are never merged. Large, new, single and foreign files stay."""
    files = {
        **{f"date=1/topic=a/{name(number)}": facts(40) for number in range(5)},
        f"date=1/topic=b/{name(7)}": facts(40),
        f"date=2/{name(8)}": facts(75),
        f"date=2/{name(9)}": facts(74),
        "date=2/compacted-abc.parquet": facts(10),
        f"date=2/{name(10)}": facts(10, modified=100),
        "date=2/of_others.parquet": facts(1),
        f"date=2/{name(11)}.tmp": facts(1),
        name(12): facts(1),
        name(13): facts(1),
    }
    assert chunks_to_compact(files, before_ms=100, wanted_bytes=100) == [
        CompactionChunk("", (name(12), name(13)), 2),
        CompactionChunk("date=1/topic=a", (name(0), name(1)), 80),
        CompactionChunk("date=1/topic=a", (name(2), name(3)), 80),
        CompactionChunk("date=2", (name(9), "compacted-abc.parquet"), 84),
    ]
    assert chunks_to_compact({}, before_ms=100, wanted_bytes=100) == []


def test_at_most_1000_files_become_one() -> None:
    """Readers miss them while they are renamed."""
    files = {f"{name(number)}": facts(1) for number in range(1001)}
    assert [len(chunk.names) for chunk in chunks_to_compact(files, before_ms=100, wanted_bytes=10**9)] == [1000]


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = CompactionChunk("date=1", (name(0), name(1)), 80).plan("abc", "written/part-0.parquet", 7)
    assert plan.target == "date=1/compacted-abc.parquet"
    assert plan.sources == (f"date=1/{name(0)}", f"date=1/{name(1)}")
    assert decode(CompactionPlan, encode(plan), "plan") == plan
    assert CompactionChunk("", (name(0),), 1).plan("abc", "w", 7).target == "compacted-abc.parquet"
    with pytest.raises(RmqdError, match="the file is not a valid compaction plan"):
        decode(CompactionPlan, b"{}", "the file")
    with pytest.raises(RmqdError, match="its format is 2; expected 1"):
        decode(CompactionPlan, encode(plan).replace(b'"version": 1', b'"version": 2'), "the file")


def test_files_with_entries_become_one_for_each_queue() -> None:
    """Compacted files are merged again once their compaction is finished. A file with two entries is left alone."""
    first, second, third, other = (
        f"{number:020}-{number + 9:020}-{number:08x}" for number in (0, 10, 1_000_000, 1_000_010)
    )
    queue, next_range = "_manifest/c/~/g/orders/~/a/0/000000", "_manifest/c/~/g/orders/~/a/0/000001"
    files = {
        **{f"date=1/topic=orders/retry-a-0-{stem}.parquet": facts(40) for stem in (first, second, third, other)},
        f"date=1/topic=orders/a-1-{first[:-1]}f.parquet": facts(1),
        **{f"{queue}/{stem}.json": facts(1) for stem in (first, second)},
        **{f"{next_range}/{stem}.json": facts(1) for stem in (third, other)},
        f"_manifest/c/~/other/orders/~/a/0/000001/{other}.json": facts(1),
    }
    [chunk] = chunks_to_compact(files, before_ms=100, wanted_bytes=100)
    assert chunk.names == tuple(f"retry-a-0-{stem}.parquet" for stem in (first, second))
    assert chunk.entries == tuple(f"{queue}/{stem}.json" for stem in (first, second))
    plan = chunk.plan("abc", "written/part-0.parquet", 20)
    assert plan.sources == (*chunk.entries, *chunk.paths)
    stem = plan.entry.removeprefix(f"{queue}/").removesuffix(".json")
    assert stem.startswith(f"{0:020}-{19:020}-")
    assert plan.target == f"date=1/topic=orders/retry-a-0-{stem}.parquet"
    made = {plan.target: facts(20), plan.entry: facts(1)}
    later = f"{20:020}-{29:020}-00000014"
    made |= {f"date=1/topic=orders/retry-a-0-{later}.parquet": facts(20), f"{queue}/{later}.json": facts(1)}
    assert [len(one.names) for one in chunks_to_compact(made, before_ms=100, wanted_bytes=100)] == [2]
    assert chunks_to_compact(made, before_ms=100, wanted_bytes=100, unfinished={"abc"}) == []


def test_the_last_batch_of_each_query_is_known() -> None:
    assert last_batches([name(3), name(10), name(2, OTHER), "compacted-abc.parquet"]) == {QUERY: 10, OTHER: 2}
