"""One dead letter of a group, the filter that selects dead letters, and the file that records settled ones."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rmqd.consumer.handling.send_back import RMQD_EXCEPTION, RMQD_LITE_TOPIC, RMQD_REASON, copied_properties
from rmqd.errors import InUseError, RmqdError
from rmqd.runtime.files import lock_file, make_folder, replace_file, sync_folder
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, UNIQ_KEY
from rmqd.wire.topics import retry_topic, topic_of_pop_retry


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Conditions that a dead letter must meet; without conditions, every letter matches.

    Times are Unix milliseconds, and are compared with the letter's store time. If `ids`, `keys` or `tags` are given,
    the letter must have one of each; it must have all `properties`. The text `reason` must occur, ignoring case, in the
    letter's reason or in the last line of its traceback.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    ids: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    properties: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    def matches(self, letter: DlqMessage) -> bool:
        message = letter.message
        stored = message.stored_properties
        if self.since_ms is not None and message.store_timestamp < self.since_ms:
            return False
        if self.until_ms is not None and message.store_timestamp >= self.until_ms:
            return False
        if self.ids and self.ids.isdisjoint((message.msg_id, message.offset_msg_id, stored.get(ORIGIN_MESSAGE_ID))):
            return False
        if self.keys and self.keys.isdisjoint((message.keys or "").split()):
            return False
        if self.tags and message.tags not in self.tags:
            return False
        if any(stored.get(name) != value for name, value in self.properties):
            return False
        told = f"{letter.reason or ''}\n{letter.exception or ''}"
        return self.reason.casefold() in told.casefold()


RMQD_REPLAY_ID: Final = "RMQD_REPLAY_ID"
"""Property that a replay adds to each copy that it sends. Its value is the dead letter's `replay_id`."""
_BOUNCED: Final = "-1"


@dataclass(frozen=True, slots=True)
class DlqMessage:
    """A dead letter of a group. `corrupt` is why its stored record is damaged; empty if the record is intact."""

    message: Message
    group: str
    corrupt: str = ""

    @property
    def offset(self) -> int:
        """The letter's offset in its queue of the DLQ topic."""
        return self.message.queue_offset

    @property
    def replay_id(self) -> str:
        """The letter's offset id and store time: together unique, even across recreated topics and clusters."""
        return f"{self.message.offset_msg_id}-{self.message.store_timestamp}"

    @property
    def reason(self) -> str | None:
        """The reason that rmqd recorded when it dead-lettered the message; None if another client did."""
        return self.message.stored_properties.get(RMQD_REASON)

    @property
    def exception(self) -> str | None:
        """The last line of the handler's traceback: name and text of the exception. None if it is not recorded."""
        told = self.message.stored_properties.get(RMQD_EXCEPTION, "").strip()
        return told.rpartition("\n")[2].strip() or None

    @property
    def kind(self) -> str | None:
        """The key for counts of letters: the reason, and the exception's name unless the reason contains it."""
        if self.reason is None:
            return None
        name = (self.exception or "").partition(":")[0].rpartition(".")[2]
        is_told_by_it = name in ("", "DeadLetter") or name in self.reason
        return self.reason if is_told_by_it else f"{self.reason} ({name})"

    @property
    def origin_topic(self) -> str | None:
        """The topic that the producer sent the message to; None if the dead letter does not contain it."""
        told = self.message.stored_properties.get(RETRY_TOPIC)
        if told is None or told == retry_topic(self.group):
            return None
        return topic_of_pop_retry(self.group, told) or told

    @property
    def refusal(self) -> str:
        """Why the dead letter cannot be replayed; empty if it can."""
        if self.corrupt:
            return f"the stored message is corrupt: {self.corrupt}"
        if RMQD_LITE_TOPIC in self.message.stored_properties:
            return "it is from a lite topic, and a retry topic cannot return it there"
        return "" if self.origin_topic else f"its original topic is unknown: no property {RETRY_TOPIC}"

    @property
    def is_copy_of_replay(self) -> bool:
        """Whether this is a replay's copy that the broker dead-lettered at once, because the group uses queue locks.

        The broker stores such a copy with delay level -1 and without a delivery. If a member dead-letters a replayed
        message, the broker has counted a delivery, or rmqd has removed the delay level.
        """
        stored = self.message.stored_properties
        return RMQD_REPLAY_ID in stored and stored.get(DELAY) == _BOUNCED and self.message.reconsume_times == 0

    @property
    def sent_back_key(self) -> str:
        """The key of the copy that the broker makes when rmqd sends this letter back."""
        origin = self.message.stored_properties.get(ORIGIN_MESSAGE_ID) or self.message.offset_msg_id
        return _copy_key(self.message, origin, self.message.reconsume_times + 1)

    def replay_properties(self) -> dict[str, str]:
        """Return the properties of the copy that a replay sends: the message's own properties and RMQD_REPLAY_ID."""
        return copied_properties(self.message, self.origin_topic or "") | {RMQD_REPLAY_ID: self.replay_id}


def sent_back_key(copy: Message) -> str:
    """Return the `DlqMessage.sent_back_key` of the dead letter that the broker copied to make `copy`."""
    return _copy_key(copy, copy.stored_properties.get(ORIGIN_MESSAGE_ID, ""), copy.reconsume_times)


def _copy_key(message: Message, origin: str, reconsume_times: int) -> str:
    return f"{message.stored_properties.get(UNIQ_KEY, '')} {origin} {reconsume_times}"


class OffsetSet:
    """A set of offsets, stored as ranges `low <= offset < high` with gaps between them."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in ranges:
            self.add(low, high)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._lows, self._highs, strict=True)

    def __bool__(self) -> bool:
        return bool(self._lows)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._lows, offset) - 1
        return at >= 0 and offset < self._highs[at]

    def add(self, low: int, high: int | None = None) -> None:
        """Add the offsets from `low` up to, but not including, `high`; without `high`, only `low`."""
        high = low + 1 if high is None else high
        if low >= high:
            return
        first, last = bisect_left(self._highs, low), bisect_right(self._lows, high)  # indexes of ranges to merge
        if first < last:
            low, high = min(low, self._lows[first]), max(high, self._highs[last - 1])
        self._lows[first:last], self._highs[first:last] = [low], [high]

    def first_missing(self, offset: int) -> int:
        """Return the first offset, from `offset` on, that is not in the set."""
        at = bisect_right(self._lows, offset) - 1
        return max(offset, self._highs[at]) if at >= 0 else offset

    def count(self, low: int, high: int) -> int:
        """Return how many of the offsets from `low` up to, but not including, `high` are in the set."""
        first, last = bisect_right(self._highs, low), bisect_left(self._lows, high)
        return sum(max(0, min(high, self._highs[at]) - max(low, self._lows[at])) for at in range(first, last))


DLQ_FOLDER: Final = "dlq"
FILE_NAME: Final = "marks.json"
VERSION: Final = 1
LOCK_NAME: Final = "lock"

CopyMethod = Literal["retry_topic", "send_back"]
DlqQueueKey = tuple[str, int]
"""Broker name and queue id of one queue of a group's DLQ topic."""


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """Dead letters of one queue that a replay sends together.

    `keys` maps each letter's offset to the key that its copy will have. `ends` are the maximum offsets, by topic and
    queue id, of the queues that may receive copies, read before the first copy was sent.
    """

    queue_id: int
    way: CopyMethod
    keys: Mapping[int, str]
    ends: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class QueueFingerprint:
    """A settled dead letter that identifies its queue: a recreated topic has another message at this offset."""

    offset: int
    replay_id: str


class DlqMarks:
    """The file that records a group's settled dead letters. Its methods block. Call `hold` before `save`."""

    def __init__(self, state_dir: Path, group: str) -> None:
        self.path = self._former = state_dir / DLQ_FOLDER / group / FILE_NAME
        self._folder = state_dir / DLQ_FOLDER
        self.settled: dict[DlqQueueKey, OffsetSet] = {}
        self.witnesses: dict[DlqQueueKey, QueueFingerprint] = {}
        self.windows: dict[str, ReplayWindow] = {}
        """Windows whose letters were sent but not yet settled, by broker name; at most one for each broker."""
        self.is_new = True
        """Whether marks may be missing: there was no file, or `forget` removed the marks of a queue."""

    def use_identity(self, identity: Identity) -> None:
        """Use the file for this cluster and group. Until it exists, `load` reads rmqd 0.1.0's file for the group."""
        self.path = self._folder / str(identity) / FILE_NAME

    def lock(self) -> None:
        """Lock the group's folder until this process ends. Raises RmqdError if it fails or another process holds it."""
        folder = self.path.parent
        try:
            make_folder(folder)
            lock_file(folder / LOCK_NAME)
        except InUseError as error:  # the text of `error` advises another state_dir, which would send letters twice
            raise RmqdError(
                f"another replay or purge of this group is running (process {error.owner or '?'}); wait until it ends"
            ) from error
        except OSError as error:
            raise RmqdError(
                f"{folder}, which records the progress of a replay, cannot be written: {error.strerror or error}; "
                "set another folder with --set state_dir=FOLDER"
            ) from error

    def load(self) -> None:
        """Read the file if it exists. Raises RmqdError if it cannot be read or is damaged."""
        path = self.path
        try:
            path = path if path.exists() else self._former
            self._take(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return
        except OSError as error:
            raise RmqdError(f"{path} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RmqdError(
                f"{path} is damaged ({error}); restore it from a backup. If you remove it, some letters that were "
                "replayed or purged count as not handled, and may be replayed again"
            ) from error
        self.is_new = False

    def save(self) -> None:
        """Write all marks to the file and to disk. Raises RmqdError if the file cannot be written."""
        document = {
            "version": VERSION,
            "queues": [
                {
                    "broker": broker,
                    "queue": queue_id,
                    "settled": list(spans),
                    "witness": asdict(seen) if (seen := self.witnesses.get((broker, queue_id))) else None,
                }
                for (broker, queue_id), spans in sorted(self.settled.items())
            ],
            "windows": {broker: asdict(window) for broker, window in self.windows.items()},
        }
        try:
            replace_file(self.path, json.dumps(document).encode())
            sync_folder(self.path.parent)
            if self._former != self.path and self._former.exists():  # `load` has read 0.1.0's file into this one
                self._former.replace(self._former.with_name(f"{FILE_NAME}.moved"))
        except OSError as error:
            raise RmqdError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def settle(self, place: DlqQueueKey, offset: int, replay_id: str = "") -> None:
        """Mark one dead letter as settled. If `replay_id` is given, the letter becomes the queue's witness."""
        self.settled.setdefault(place, OffsetSet()).add(offset)
        if replay_id:
            self.witnesses[place] = QueueFingerprint(offset, replay_id)

    def forget(self, place: DlqQueueKey) -> None:
        """Remove all marks of a queue, because its topic was recreated."""
        self.is_new = True
        self.settled.pop(place, None)
        self.witnesses.pop(place, None)

    def _take(self, document: Any) -> None:
        if document.get("version", VERSION) != VERSION:  # files of rmqd 0.1.0 have the same format, without a version
            raise RmqdError(
                f"{self.path} was written by a newer rmqd (format {document['version']}; this one reads {VERSION}); "
                "use the newer rmqd"
            )
        for one in document["queues"]:
            place = str(one["broker"]), int(one["queue"])
            self.settled[place] = OffsetSet((int(low), int(high)) for low, high in one["settled"])
            if one["witness"]:
                self.witnesses[place] = QueueFingerprint(
                    int(one["witness"]["offset"]), str(one["witness"]["replay_id"])
                )
        for broker, one in document["windows"].items():
            keys = {int(offset): str(key) for offset, key in one["keys"].items()}
            ends = {topic: {int(queue): int(end) for queue, end in ends.items()} for topic, ends in one["ends"].items()}
            self.windows[broker] = ReplayWindow(int(one["queue_id"]), one["way"], keys, ends)
