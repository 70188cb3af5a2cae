"""The messages that the campaign `spark_tables` sends, and the expected tables. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

VALUE_SCHEMA: Final = "id bigint, amount decimal(12,2), state string, version bigint"
BAD_SHARE: Final = 0.05
MESSAGES_PER_ORDER: Final = 20
# values that COPY must quote, and a value outside of ASCII
STATES: Final = ("paid", "", None, "tab\tand\nline", "back\\slash \\N", "'quoted', \"twice\"", "käuflich 買")

Order = tuple[int, Decimal | None, str | None, int]
"""A row: id, amount, state, version."""


def body_of(seed: int, number: int, messages: int) -> bytes:
    """Return the body of a message: a change of an order, or a bad body."""
    order = _order(seed, number, messages)
    chance = random.Random(f"{seed} {number} bad")
    if chance.random() >= BAD_SHARE:
        return json.dumps(_document(order)).encode()
    whole = json.dumps(_document(order)).encode()
    return chance.choice(
        (
            whole[: len(whole) // 2],
            json.dumps({**_document(order), "id": "no number"}).encode(),
            json.dumps({**_document(order), "amount": 12345678901}).encode(),
            json.dumps([1, 2]).encode(),
            b"\xff\xfe",
        )
    )


def _order(seed: int, number: int, messages: int) -> Order:
    chance = random.Random(f"{seed} {number}")
    amount = None if chance.random() < 0.02 else Decimal(chance.randrange(10**9)) / 100
    return chance.randrange(max(1, messages // MESSAGES_PER_ORDER)), amount, chance.choice(STATES), number


def _document(order: Order) -> dict[str, Any]:
    amount = None if order[1] is None else str(order[1])
    return {"id": order[0], "amount": amount, "state": order[2], "version": order[3]}


@dataclass(frozen=True, slots=True)
class Truth:
    """The expected results of all messages."""

    changes: dict[str, Order]
    """Each change of an order, by the message's key."""
    bad: frozenset[str]
    """The keys of messages with bad bodies."""

    @property
    def latest(self) -> dict[int, Order]:
        """The last change of each order."""
        return {order[0]: order for order in sorted(self.changes.values(), key=lambda order: order[3])}


def truth_of(seed: int, messages: int) -> Truth:
    """Return the expected contents of the tables."""
    changes, bad = {}, set()
    for number in range(messages):
        order = _order(seed, number, messages)
        if body_of(seed, number, messages) == json.dumps(_document(order)).encode():
            changes[f"m{number}"] = order
        else:
            bad.add(f"m{number}")
    return Truth(changes, frozenset(bad))


def differences(
    truth: Truth,
    ends: Mapping[int, int],
    changes: Iterable[Sequence[Any]] | None,
    latest: Iterable[Sequence[Any]] | None,
) -> Iterator[tuple[str, str]]:
    """Yield the differences between the tables and the truth: the kind of the difference, and the row.

    `ends` are the ends of the topic's queues by queue id. `changes` are rows of queue, offset, key, id, amount, state,
    version and the reason of a bad message; `latest` are rows of orders. A table that is None is not checked.
    """
    if changes is not None:
        yield from _of_changes(truth, ends, changes)
    if latest is None:
        return
    there = {order[0]: tuple(order) for order in latest}
    wanted = truth.latest
    for number in sorted(wanted.keys() | there.keys()):
        if there.get(number) != wanted.get(number):
            yield "not the last", f"order {number}: {there.get(number)} in place of {wanted.get(number)}"


def _of_changes(truth: Truth, ends: Mapping[int, int], changes: Iterable[Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Compare by queue and offset: the topic may have a key twice if a producer got no response."""
    places: set[tuple[int, int]] = set()
    keys: set[str] = set()
    for queue, offset, key, *order, why in changes:
        if (queue, offset) in places:
            yield "twice", f"{key} at offset {offset} of queue {queue}"
        if key in truth.bad:
            if not why or any(value is not None for value in order):
                yield "wrong", f"{key}: {order}, {why}"
        elif tuple(order) != truth.changes.get(key) or why:
            yield "wrong", f"{key}: {order}, {why}"
        places.add((queue, offset))
        keys.add(key)
    stored = {(queue, offset) for queue, end in ends.items() for offset in range(end)}
    yield from (("missing", f"offset {offset} of queue {queue}") for queue, offset in sorted(stored - places))
    yield from (("missing", key) for key in sorted((truth.changes.keys() | truth.bad) - keys))
