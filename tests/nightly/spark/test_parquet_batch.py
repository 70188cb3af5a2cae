"""Names of files, manifests and layouts of the Parquet sink, without Spark."""

from __future__ import annotations

import pytest

from rmqd.errors import RmqdError
from rmqd.handler_api.destinations.archive_manifest import BatchManifest, Layout, decode, encode
from rmqd.spark.pipelines.parquet_sink import batch_of_manifest, files_of_batches_since, make_manifest, manifest_name
from rmqd.spark.pipelines.pipeline_counts import MicroBatch

QUERY = "3f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
JOB = "8d1f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
BATCH = MicroBatch(QUERY, 12, b"v1\n{}\n")


def test_files_are_named_by_query_batch_attempt_and_task() -> None:
    """Spark's additional files are left out. Files of two attempts never have the same name."""
    names = [
        f"date=2026-03-01/topic=a%3Ab/part-00003-{JOB}.c001.snappy.parquet",
        f"part-00000-{JOB}-c000.zstd.parquet",
        f"date=2026-03-01/.part-00003-{JOB}.c001.snappy.parquet.crc",
        "_SUCCESS",
    ]
    moved = (
        f"date=2026-03-01/topic=a%3Ab/{QUERY}-000000012-0a1b2c-00003-001.snappy.parquet",
        f"{QUERY}-000000012-0a1b2c-00000-000.zstd.parquet",
    )
    former = [f"{QUERY}-000000012-ffffff-00000-000.zstd.parquet"]
    manifest = make_manifest(BATCH, f"archive/{QUERY}/000000012-0a1b2c", names, former, 7)
    assert manifest.moves == tuple(zip(names, moved, strict=False))
    assert manifest.replaced == tuple(former)
    assert files_of_batches_since(BATCH, moved) == list(moved)
    assert decode(BatchManifest, encode(manifest), "it") == manifest


def test_a_file_with_an_unknown_name_is_refused() -> None:
    """Another version of Spark may write such names, and rows must not be lost silently."""
    with pytest.raises(RmqdError, match=r"Spark wrote data-1.parquet; expected"):
        make_manifest(BATCH, "there", ["data-1.parquet"], [], 1)


def test_the_files_since_a_batch_belong_to_its_query() -> None:
    """Files in folders are included. The order is numeric, not alphabetical."""
    ours = [f"a=1/{QUERY}-000000012-00000-000.parquet", f"{QUERY}-1000000000-00000-000.parquet"]
    others = [f"{QUERY}-000000011-00000-000.parquet", f"{JOB}-000000012-00000-000.parquet", "by-hand.parquet"]
    assert files_of_batches_since(BATCH, [*others, *ours]) == ours


def test_a_manifest_belongs_to_one_plan_of_a_batch() -> None:
    """A batch that is planned again has another one. Other files are not manifests."""
    assert batch_of_manifest(manifest_name(BATCH)) == 12
    assert manifest_name(BATCH) != manifest_name(MicroBatch(QUERY, 12, b"v1\n{...}\n"))
    assert batch_of_manifest(f"000000012-{'0' * 12}") is None
    assert batch_of_manifest("layout.json") is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 1, "staged": "x", "moves": [["a"]]}'])
def test_an_invalid_manifest_is_reported_by_its_name(content: bytes) -> None:
    """An editor or a disk may have damaged it."""
    with pytest.raises(RmqdError, match=r"12-ab.json is not a valid batch manifest"):
        decode(BatchManifest, content, "12-ab.json")
    with pytest.raises(RmqdError, match=r"layout.json does not describe the columns of a folder"):
        decode(Layout, content, "layout.json")


def test_a_manifest_of_a_later_version_is_refused() -> None:
    """This version may not know all of its content."""
    later = encode(BatchManifest(version=2, staged="x", moves=(), replaced=(), rows=0))
    with pytest.raises(RmqdError, match="was written by another version of rmqd: its format is 2; expected 1"):
        decode(BatchManifest, later, "12-ab.json")


def test_a_removed_column_cannot_return_with_another_type() -> None:
    """Files with this column still exist."""
    first = Layout(("topic",), {"topic": "string", "id": "int"})
    second = Layout(("topic",), {"topic": "string", "name": "string"})
    assert second.problems_after(first) == []
    kept = decode(Layout, encode(second.with_former(first)), "layout.json")
    (problem,) = Layout(("topic",), {"topic": "string", "id": "bigint"}).problems_after(kept)
    assert problem == "column id: is now bigint, but int in the folder; no reader can read both"
