"""The plan of a replay, and its file, which exists until the replay ends so that an interrupted replay can continue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from rmqd.errors import RmqdError
from rmqd.operate.queries.topic_queries import OffsetWindow
from rmqd.runtime.files import make_folder, replace_file, sync_folder
from rmqd.wire.message_queue import Identity, MessageQueue
from rmqd.wire.topics import MAX_GROUP_LENGTH

_FORM: Final = "rmqd replay 1"
_PLAN: Final = "plan.json"
_ENDING: Final = "-rmqd-replay"


def shadow_name(group: str) -> str:
    """Return the name of a group's shadow group. Raises RmqdError if it is too long for brokers."""
    if len(group + _ENDING) > MAX_GROUP_LENGTH:
        raise RmqdError(
            f"{group}{_ENDING}, the shadow group's name, is too long; expected at most {MAX_GROUP_LENGTH} characters"
        )
    return group + _ENDING


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One replay of a group's messages. Names of groups and topics include the namespace, as on brokers."""

    group: str
    since: str
    until: str | None
    """`--from` and `--to` as the user wrote them. The same texts continue this replay."""
    from_ms: int
    to_ms: int
    """`since` and `until` in Unix milliseconds."""
    made_at: str
    """When the plan was made, as ISO 8601 in UTC. This text also identifies the replay."""
    windows: tuple[OffsetWindow, ...]
    """The offsets to handle in every queue of the group's topics. A window is empty if its queue has no messages from
    this time.
    """
    identity: str = ""
    """The text that identifies the group and its cluster. Empty in files of rmqd 0.1.0."""
    is_begun: bool = False
    """Whether the shadow group exists, with the windows' starts as its first offsets."""

    @property
    def shadow(self) -> str:
        return shadow_name(self.group)

    @property
    def messages(self) -> int:
        """The number of messages in all windows, including messages that a filter will exclude."""
        return sum(window.size for window in self.windows)

    @property
    def ends(self) -> Mapping[MessageQueue, int]:
        """By queue, the first offset after its window."""
        return {window.queue: window.end for window in self.windows}

    def to_json(self) -> bytes:
        windows = [[*window.queue, window.start, window.end] for window in self.windows]
        names = "group", "since", "until", "from_ms", "to_ms", "made_at", "identity", "is_begun"
        fields = {name: getattr(self, name) for name in names}
        return json.dumps({"form": _FORM, **fields, "windows": windows}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse a plan that `to_json` wrote. Raises ValueError, KeyError or TypeError."""
        fields = json.loads(data)
        if fields.pop("form") != _FORM:
            raise ValueError(f"its form is not {_FORM}")
        windows = tuple(OffsetWindow(MessageQueue(*place), start, end) for *place, start, end in fields.pop("windows"))
        return cls(**fields, windows=windows)


class ReplayFolder:
    """The folder with the plan of a group's replay, and the files of messages that failed."""

    def __init__(self, state_dir: Path, group: str, identity: Identity) -> None:
        """`group` is the name in the configuration, which rmqd 0.1.0 used as the folder's name."""
        self.identity = str(identity)
        self._folder = state_dir / "replays" / self.identity
        self._plan = self._folder / _PLAN
        self._former = state_dir / "replays" / group / _PLAN

    def read(self, *, is_forced: bool = False) -> ReplayPlan | None:
        """Return the plan of an unfinished replay, or None. Raises RmqdError.

        Also raises RmqdError for a plan of another cluster or group, unless `is_forced`.
        """
        path = self._plan if self._plan.exists() else self._former
        try:
            plan = ReplayPlan.from_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RmqdError(f"{path} cannot be read as the plan of a replay: {error}") from error
        if plan.identity != self.identity and not is_forced:
            raise RmqdError(
                f"{path} is the plan of {plan.identity or f'{plan.group} on a cluster that rmqd 0.1.0 did not store'}, "
                f"but this replay is of {self.identity}; use --force to resume it, or delete the file for a new replay"
            )
        return replace(plan, identity=self.identity)

    def write(self, plan: ReplayPlan) -> None:
        """Write the plan to its file and to disk. Raises RmqdError if the folder cannot be written."""
        try:
            make_folder(self._folder)
            replace_file(self._plan, plan.to_json())
            sync_folder(self._folder)
            self._former.unlink(missing_ok=True)
        except OSError as error:
            raise RmqdError(
                f"the folder of the replay's plan, {self._folder}, cannot be written: {error.strerror}; "
                "set a writable folder with --set state_dir=PATH"
            ) from error

    def failures(self, plan: ReplayPlan) -> ReplayFailuresFile:
        """Return the file for messages that failed at every attempt of this plan's replay."""
        return ReplayFailuresFile(self._folder / f"failures-{plan.made_at.replace(':', '')}.jsonl")

    def end(self) -> None:
        """Delete the plan. The file of failures stays. Raises OSError."""
        self._plan.unlink(missing_ok=True)
        self._former.unlink(missing_ok=True)


class ReplayFailuresFile:
    """A file with one JSON document per line, for each message that failed at every attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, failure: Mapping[str, Any]) -> None:
        """Append one failure. Raises OSError."""
        make_folder(self.path.parent)
        with self.path.open("a") as file:
            file.write(json.dumps(failure) + "\n")

    def read(self) -> Sequence[Mapping[str, Any]]:
        """Return the last failure of each message. A message may fail again after an interruption.

        Raises RmqdError.
        """
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise RmqdError(
                f"{self.path}, the list of messages that failed, cannot be read: {error}; look at its undamaged lines"
            ) from error
        failures: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for line in lines:
            try:
                one = json.loads(line)
            except ValueError:
                continue  # the run was interrupted while it wrote this line, and its message was redelivered
            failures[one["topic"], one["broker"], one["queue"], one["offset"]] = one
        return list(failures.values())
