"""The data that a broker has stored. It survives the process, except for unflushed values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rmqd.broker.store.journal import MEMORY_BYTES, JournalKind, LogRow, RecordRow

LATE = frozenset({JournalKind.OFFSET})
"""The values that Java's broker writes only every 5 s (flushConsumerOffsetInterval)."""


class Disk:
    """A RecordLog and a Journal. `flush` writes the values that Java's broker writes late; `crash` loses them."""

    name = "disk"
    usual_capacity_bytes = MEMORY_BYTES

    def __init__(self) -> None:
        self._rows: dict[int, RecordRow] = {}
        self._values: dict[JournalKind, dict[str, str]] = {}
        self._late: dict[tuple[JournalKind, str], str | None] = {}
        self.on_record: Callable[[RecordRow], None] = lambda row: None
        """Called with each record that is stored."""
        self.on_offset: Callable[[str, int], None] = lambda key, offset: None
        """Called with the key `topic@group@queue` and each offset that is stored."""
        self.on_reported: Callable[[str], None] = lambda key: None
        """Called with the key `topic@group@queue` of a reset that a response reports."""
        self.on_topic: Callable[[], None] = lambda: None
        """Called when a topic is stored."""

    def append(self, row: RecordRow) -> None:
        """Store a record."""
        self._rows[row.commit_log_offset] = row
        self.on_record(row)

    def read(self, commit_log_offset: int) -> bytes | None:
        """Return the record that starts at an offset."""
        row = self._rows.get(commit_log_offset)
        return None if row is None else row.record

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        """Return several records, which must exist."""
        return [self._rows[offset].record for offset in commit_log_offsets]

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Delete records."""
        for offset in commit_log_offsets:
            self._rows.pop(offset, None)

    def rows(self) -> Iterator[LogRow]:
        """Iterate over all records without their bytes."""
        return iter(
            [
                (offset, row.topic, row.queue_id, row.queue_offset, row.tags_code, row.store_timestamp, len(row.record))
                for offset, row in sorted(self._rows.items())
            ]
        )

    def records(self) -> list[RecordRow]:
        """All records."""
        return list(self._rows.values())

    def value(self, kind: JournalKind, key: str) -> str | None:
        """Return a value, flushed or not."""
        return self._late[kind, key] if (kind, key) in self._late else self._values.get(kind, {}).get(key)

    def put(self, kind: JournalKind, key: str, value: str) -> None:
        """Store a value."""
        if kind is JournalKind.OFFSET:
            self.on_offset(key, int(value))
        elif kind is JournalKind.TOPIC:
            self.on_topic()
        self._change(kind, key, value)

    def delete(self, kind: JournalKind, key: str) -> None:
        """Delete a value."""
        if kind is JournalKind.RESET:
            self.on_reported(key)
        self._change(kind, key, None)

    def items(self, kind: JournalKind) -> Iterator[tuple[str, str]]:
        """Iterate over the flushed values of a kind."""
        return iter(list(self._values.get(kind, {}).items()))

    def flush(self) -> None:
        """Write the late values."""
        late, self._late = self._late, {}
        for (kind, key), value in late.items():
            self._write(kind, key, value)

    def crash(self) -> None:
        """Lose the unflushed values."""
        self._late.clear()

    def _change(self, kind: JournalKind, key: str, value: str | None) -> None:
        if kind in LATE:
            self._late[kind, key] = value
        else:
            self._write(kind, key, value)

    def _write(self, kind: JournalKind, key: str, value: str | None) -> None:
        if value is None:
            self._values.setdefault(kind, {}).pop(key, None)
        else:
            self._values.setdefault(kind, {})[key] = value
