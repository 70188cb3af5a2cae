"""Common parts of the handlers `postgresql` and `sql`: the rows for a batch, and the attempts to write them."""

from __future__ import annotations

import logging
import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final, Generic, TypeVar

from rmqd import AlreadyHandled, Batch, Message
from rmqd_handlers.away import OnInvalid, TargetChangedError, acknowledge_written, refuse, try_again, valid
from rmqd_handlers.faults import ErrorCause
from rmqd_handlers.message_values import ParsedMessage, Value, number_in
from rmqd_handlers.option_kinds import option

logger = logging.getLogger(__name__)

Row = tuple[Any, ...]
Rows = Sequence[tuple[Message, Row]]

TABLE_PATTERN: Final = r"^[^.]+(\.[^.]+)?$"
COLUMNS_TEXT: Final = (
    "each column to write, and its value: a JSON path into the body such as $.order.id, a field such as msg_id, "
    "or properties.NAME"
)
KEY: Final[Any] = option(
    [],
    "the columns of a unique index: a row with an existing key is skipped, or replaced with upsert; "
    "without a key, a redelivered message is written again",
)
VERSION: Final[Any] = option(
    None, "for upsert, a column: a row with a smaller value in it does not replace an existing row"
)


def check_key(columns: Mapping[str, Value], mode: str, key: Sequence[str], version: str | None) -> None:
    """Raise ValueError if the options `columns`, `mode`, `key` and `version` do not fit together."""
    if mode == "upsert" and not key:
        raise ValueError("mode: upsert needs a key: the columns of a unique index")
    if version is not None and mode != "upsert":
        raise ValueError("version needs mode: upsert")
    named = [*key, *([version] if version is not None else [])]
    if missing := [name for name in named if name not in columns]:
        raise ValueError(f"key or version names {', '.join(missing)}, which is not in columns")


def make_rows(
    batch: Batch, parts: Mapping[str, Callable[[ParsedMessage], Any]], key: Sequence[str], on_invalid: OnInvalid
) -> list[tuple[Message, Row]]:
    """Return the row of each message, with the values of `parts`. Refuses messages that cannot be rows.

    The rows are sorted by `key`, if given: otherwise two batches that write the same keys could deadlock. Rows whose
    keys may be equal for the database keep the order of their messages, so that the last row wins.
    """
    rows = valid(batch, lambda opened: tuple(part(opened) for part in parts.values()), on_invalid)
    if key:
        at = [list(parts).index(name) for name in key]
        rows.sort(key=lambda row: [_in_order(row[1][place]) for place in at])
    return rows


def _in_order(value: Any) -> tuple[int, Any]:
    """Return the sort key of a value. Values that the database may consider equal have the same sort key.

    A database may compare numbers by value, and texts without regard to case, accents, width, or trailing spaces.
    """
    if value is None:
        return 0, 0
    if isinstance(value, str | Decimal):  # text too, because `postgresql` has numbers as text
        number: float | Decimal | None = number_in(value)
    else:
        is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        number = value if is_number else None
    if number is not None:
        return 1, number
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if not text.isascii():
        text = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
        text = unicodedata.normalize("NFKC", text.casefold())
    return 2, text.casefold().rstrip()


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that the database refused, with the cause and the error's text."""

    message: Message
    fault: ErrorCause
    why: str


@dataclass(frozen=True, slots=True)
class UnwrittenOutcome:
    """The rows of a batch that were not written, and why. All other rows were written."""

    refused: list[RefusedRow] = field(default_factory=list)
    handled_before: list[AlreadyHandled] = field(default_factory=list)


class RowsRefusedError(Exception):
    """The database refused rows, and it is unknown whether a message is the cause."""

    def __init__(self, text: str, fault: ErrorCause = ErrorCause.COUNTERPART) -> None:
        super().__init__(text)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The target of rows: a table as the database describes it, or an SQL statement."""

    parts: Mapping[str, Callable[[ParsedMessage], Any]]
    """The functions that read the values of a row from a message, by the name of the value."""
    key: Sequence[str]
    """The names of the parts by which rows are sorted; empty if rows keep the order of their messages."""
    names: Sequence[str]
    """The names that may be quoted in an error's text: the columns and the table."""
    kinds: str
    """The database's description of the written columns; empty for a statement."""


Target = TypeVar("Target", bound=WriteTarget)


class RowHandler(ABC, Generic[Target]):
    """Writes batches to a target. After a refusal it reads the target again: a changed table may accept the row."""

    calls_limited_by: ClassVar[str] = "max_connections"

    def __init__(self, name: str, on_invalid: OnInvalid, retry_for_seconds: float) -> None:
        self._name = name
        self._on_invalid: OnInvalid = on_invalid
        self._retry_for_seconds = retry_for_seconds
        self._target: Target
        self._is_target_doubted = False

    @property
    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """The errors that the state of the database causes, not the values of a message."""

    @abstractmethod
    def _may_pass(self, error: Any) -> bool:
        """Return whether to retry in place after one of `_errors`."""

    @abstractmethod
    async def _read_target(self) -> Target:
        """Read the target from the database again. Raises one of `_errors`."""

    @abstractmethod
    async def _write(self, target: Target, rows: Rows) -> UnwrittenOutcome:
        """Write the rows. Raises one of `_errors` if the rows' messages must wait."""

    async def handle(self, batch: Batch) -> None:
        retry_for = self._retry_for_seconds
        await try_again(lambda: self._attempt(batch), self._errors, retry_for, self._name, self._may_pass)
        acknowledge_written(batch)

    async def _attempt(self, batch: Batch) -> None:
        if self._is_target_doubted:
            await self._has_changed(self._target)
        target, rest = self._target, batch.undecided()  # an earlier attempt may have written some rows
        trial = Batch(list(rest), rest.message_queue)  # its decisions apply if the attempt succeeds
        rows = make_rows(trial, target.parts, target.key, self._on_invalid)
        if trial.decisions() and await self._has_changed(target):
            raise TargetChangedError
        try:
            written = await self._write(target, rows) if rows else UnwrittenOutcome()
            for index, decision in trial.decisions().items():
                rest.replace_decision(index, decision)
            is_refused = any(one.fault is not ErrorCause.COUNTERPART for one in written.refused)
            if is_refused and await self._has_changed(target):
                acknowledge_written(batch, [one.message for one in written.refused])
                raise TargetChangedError
            self._decide(batch, written)
        except self._errors:
            self._is_target_doubted = True
            raise

    async def _has_changed(self, read: Target) -> bool:
        """Read the target again. Returns whether it changed."""
        self._is_target_doubted = True
        self._target = await self._read_target()
        self._is_target_doubted = False
        return self._target.kinds != read.kinds

    def _decide(self, batch: Batch, written: UnwrittenOutcome) -> None:
        """Decide about the messages of rows that were not written. Raises RowsRefusedError if a cause is unknown."""
        unknown: list[str] = []
        for one in written.refused:
            if one.fault is ErrorCause.MESSAGE:
                refuse(batch, one.message, one.why, self._on_invalid)
            elif one.fault is ErrorCause.REFERENCE:
                batch.retry(one.message, reason=one.why)  # the missing row of the foreign key may be stored later
            else:
                unknown.append(one.why)
        for before in written.handled_before:
            if len(batch) == 1:
                raise before  # because rmqd counts AlreadyHandled
            logger.info("message.already_handled", extra={"msg_id": before.message.msg_id})
        if unknown:
            acknowledge_written(batch, [one.message for one in written.refused])
            raise RowsRefusedError(unknown[0])
