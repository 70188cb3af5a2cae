"""Which rows share a request, and which do not."""

from __future__ import annotations

from typing import Any

from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.spark.sink.sink_rows import OutgoingRow
from rmqd.spark.sink.sink_writer import MOST_BYTES, MOST_ROWS, bundles


def row(body: str, topic: str = "orders", queue_id: int | None = None, **more: Any) -> OutgoingRow:
    return OutgoingRow(OutgoingMessage(topic, body.encode(), **more), queue_id)


def grouped(*rows: OutgoingRow) -> list[list[str]]:
    return [[one.message.body.decode() for one in bundle] for bundle in bundles(rows)]


def test_a_request_has_one_topic_and_one_lane() -> None:
    """Rows of each stay in their order."""
    rows = [row(str(n), topic="ab"[n % 2], sharding_key="xyz"[n // 4]) for n in range(12)]
    assert grouped(*rows) == [["0", "2"], ["1", "3"], ["4", "6"], ["5", "7"], ["8", "10"], ["9", "11"]]
    assert grouped(row("a", queue_id=1), row("b", queue_id=2), row("c", queue_id=1)) == [["a", "c"], ["b"]]


def test_a_request_has_only_so_many_rows_and_bytes() -> None:
    """A row that is larger goes alone."""
    many = [str(number) for number in range(2 * MOST_ROWS + 1)]
    assert grouped(*map(row, many)) == [many[:MOST_ROWS], many[MOST_ROWS:-1], many[-1:]]
    half, large = "h" * (MOST_BYTES // 2), "l" * (MOST_BYTES * 2)
    assert grouped(row("1"), row(half), row(half), row(large), row("2")) == [["1", half], [half], [large], ["2"]]


def test_delayed_rows_and_retries_go_alone() -> None:
    """No batch may have them; what came before in their lane is stored before."""
    rows = [row("1"), row("2", delay_level=3), row("3", deliver_at_ms=1), row("4", topic="%RETRY%group"), row("5")]
    assert grouped(*rows) == [["2"], ["3"], ["4"], ["1", "5"]]
    in_lane = [row("1", queue_id=0), row("2", queue_id=0, delay_level=3), row("3", queue_id=0)]
    assert grouped(*in_lane) == [["1"], ["2"], ["3"]]
