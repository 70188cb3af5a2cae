"""The change data that the campaign `spark_tables` sends, and the expected copy of its source. Pure.

The changes are Debezium envelopes with positions in the source's log, because queues do not keep their order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tests.nightly.campaigns.tables_truth import BAD_SHARE, MESSAGES_PER_ORDER, STATES, VALUE_SCHEMA, Order

CHANGES: Final[Mapping[str, Any]] = {
    "format": "debezium",
    "tables": ["public.orders"],
    "schema": VALUE_SCHEMA,
    "keys": ["id"],
    "order": "position",
    "bad_rows": "leave_out",
}
"""The options of `cdc` for these changes."""
OTHERS_SHARE: Final = 0.05
SNAPSHOT_SHARE: Final = 0.05
TIME_MS: Final = 1_772_359_200_000


@dataclass(frozen=True, slots=True)
class Source:
    """A table after all its changes."""

    bodies: tuple[bytes, ...]
    """The sent messages in the order of the source's log."""
    rows: Mapping[int, Order]
    deleted: frozenset[int]
    """The keys of deleted rows."""
    bad: int
    """The number of messages that are not valid changes."""


class _Table:
    """Makes changes one at a time."""

    def __init__(self, seed: int, messages: int) -> None:
        self.rows: dict[int, Order] = {}
        self.keys: set[int] = set()
        self.bad = 0
        self._chance = random.Random(f"{seed} changes")
        self._read = SNAPSHOT_SHARE * messages
        self._most = max(2, messages // MESSAGES_PER_ORDER)
        self._has_deleted = False

    def body(self, number: int) -> bytes:
        """Return the body of the message with this number."""
        if self._has_deleted:
            self._has_deleted = False
            return b"null"  # the tombstone
        draw = self._chance.random()
        if draw < BAD_SHARE:
            self.bad += 1
            return self._bad(number)
        if draw < BAD_SHARE + OTHERS_SHARE:
            key = self._chance.randrange(self._most)
            return _written(_envelope("c", None, self._order(key, number), number, table="refunds"))
        envelope = self._change(number)
        return _written({"schema": {"type": "struct"}, "payload": envelope} if draw > 0.5 else envelope)

    def _change(self, number: int) -> dict[str, Any]:
        """Return a change of one row. An update may change the row's key."""
        key = self._chance.randrange(self._most)
        former = self.rows.pop(key, None)
        if former is None:
            self._keep(key, number)
            return _envelope("r" if number < self._read else "c", None, self.rows[key], number)
        before = self._chance.choice((former, key))
        kind = self._chance.choice(("update", "update", "move", "delete"))
        if kind == "delete":
            self._has_deleted = True
            return _envelope("d", before, None, number)
        new = self._chance.randrange(self._most) if kind == "move" else key
        if new == key or new in self.rows:
            self._keep(key, number)
            return _envelope("u", self._chance.choice((before, None)), self.rows[key], number)
        self._keep(new, number)
        return _envelope("u", before, self.rows[new], number)

    def _keep(self, key: int, number: int) -> None:
        self.rows[key] = self._order(key, number)
        self.keys.add(key)

    def _order(self, key: int, number: int) -> Order:
        amount = None if self._chance.random() < 0.02 else Decimal(self._chance.randrange(10**9)) / 100
        return key, amount, self._chance.choice(STATES), number

    def _bad(self, number: int) -> bytes:
        """Return an invalid change that would be visible in the table."""
        good = _envelope("u", None, (self._chance.randrange(self._most), None, "bad", number), number)
        return self._chance.choice(
            (
                _written(good)[: len(_written(good)) // 2],
                _written({**good, "op": "x"}),
                _written({**good, "after": {**good["after"], "amount": "12345678901"}}),
                _written({**good, "after": {**good["after"], "id": None}}),
                _written({**good, "op": "t", "after": None}),
                b"\xff\xfe",
            )
        )


def source_of(seed: int, messages: int) -> Source:
    """Return all messages, and the table after them."""
    table = _Table(seed, messages)
    bodies = tuple(table.body(number) for number in range(messages))
    return Source(bodies, table.rows, frozenset(table.keys - table.rows.keys()), table.bad)


def copy_differences(
    source: Source, copy: Iterable[Sequence[Any]], deleted: Iterable[Sequence[Any]]
) -> Iterator[tuple[str, str]]:
    """Yield the differences between a copy and its source: the kind of the difference, and the row.

    `copy` are rows of id, amount, state, version and optional further columns. `deleted` are rows that begin with a key
    recorded as deleted.
    """
    there = {row[0]: tuple(row[:4]) for row in copy}
    for key in sorted(there.keys() | source.rows.keys()):
        if there.get(key) != source.rows.get(key):
            yield "not as the source", f"order {key}: {there.get(key)} in place of {source.rows.get(key)}"
    for key in sorted(source.deleted ^ {row[0] for row in deleted}):
        yield "not as the source", f"order {key}: {'not ' if key in source.deleted else ''}kept as deleted"


def _envelope(
    op: str, before: Order | int | None, after: Order | None, number: int, table: str = "orders"
) -> dict[str, Any]:
    """Return an envelope. `before` is a row or only its key, because some sources send only the key."""
    place = {"db": "shop", "schema": "public", "table": table, "ts_ms": TIME_MS + number // 10, "lsn": 1000 + number}
    former = {"id": before} if isinstance(before, int) else _row(before)
    return {"op": op, "before": former, "after": _row(after), "source": place, "ts_ms": TIME_MS + number}


def _row(order: Order | None) -> dict[str, Any] | None:
    if order is None:
        return None
    amount = None if order[1] is None else str(order[1])
    return {"id": order[0], "amount": amount, "state": order[2], "version": order[3]}


def _written(tree: Any) -> bytes:
    return json.dumps(tree).encode()
