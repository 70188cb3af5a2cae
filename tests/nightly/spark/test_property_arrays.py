"""Properties that are split in arrays equal the parser's result."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqd.wire.messages.properties import format_properties, parse_properties
from tests.spark.needed import need
from tests.wire.messages.test_message import PROPERTIES

need("pyarrow")

import pyarrow as pa  # type: ignore[import-untyped]  # noqa: E402

from rmqd.spark.source.buffer_arrays import PropertyArrays  # noqa: E402

ANYTHING = st.text("ab\x01\x02", max_size=12).map(str.encode) | st.binary(max_size=6)
WRITTEN = (st.dictionaries(st.sampled_from("ABC"), st.sampled_from(["x", "y z"])) | PROPERTIES).map(format_properties)
PROPER = st.builds(lambda text, end: (text if end else text[:-1]).encode(), WRITTEN, st.booleans())


@settings(deadline=None)  # Arrow's first call takes longer
@example([b"A\x01x\x02A\x01y", b"B\x01x"])
@example([b"A\x01x\x02A\x01y\x02"] * 2)
@example([b"A\x01x\x02B\x01y\x02", b"A\x01x\x02C\x01y\x02"])
@example([b"A\x01x\x02B\x01y\x02", b"A\x02x\x01B\x01y\x02"])
@example([b"A\x01x  B y\x02", b"A\x01x\x02B\x01y\x02"])
@example([b"\xff\x01x\x02", b"\xff\x01y\x02"])
@example([b"A\x01\xff\x02", b"A\x01y\x02"])
@example([b"A\x01\xc3\x02B\x01\xa9\x02"] * 2)
@example([b"A\x01xyz\x02", b"A\x01x\x02z\x02"])
@example([b"A\x01xyz\x02", b"A\x01x\x01z\x02"])
@example([b"A\x01xyz\x02", b"A\x01xyzA"])
@example([b"A\x01xyzzy", b"A\x01x\x02B\x01y"])
@example([b"A\x01x\x02B\x01y", b"A\x01z\x02B\x01y"])
@given(st.lists(PROPER, max_size=6) | st.lists(PROPER | ANYTHING, max_size=6))
def test_maps_and_columns_equal_the_parsers_result(raw: list[bytes]) -> None:
    """Some are not as producers write them. The end of the last entry may be missing."""
    expected = [parse_properties(stored.decode("utf-8", "replace")) for stored in raw]
    arrays = PropertyArrays(pa.array(raw, pa.binary()))
    assert [dict(entries) for entries in arrays.maps().to_pylist()] == expected
    for name in ("A", "B", "a", "C"):
        assert arrays.column(name).to_pylist() == [entries.get(name) for entries in expected]
