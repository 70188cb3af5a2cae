"""What a replay is to handle. It is kept in a file until the replay's end, so that one that was cut short goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from rmqd.client.looks.windows import Window
from rmqd.consumer.offsets.private_files import make_folder, replace_file, sync_folder
from rmqd.errors import RmqdError
from rmqd.wire.identity import Identity
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import MAX_GROUP_LENGTH

_FORM: Final = "rmqd replay 1"
_PLAN: Final = "plan.json"
_ENDING: Final = "-rmqd-replay"


def shadow_name(group: str) -> str:
    """The name of a group's shadow. Raises RmqdError where it would be longer than brokers take."""
    if len(group + _ENDING) > MAX_GROUP_LENGTH:
        raise RmqdError(
            f"the shadow group {group}{_ENDING} has a longer name than brokers take; accepted: {MAX_GROUP_LENGTH}"
        )
    return group + _ENDING


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One replay. Names are those that brokers know."""

    group: str
    since: str
    until: str | None
    """The times as they were asked for: who asks so again goes on."""
    from_ms: int
    to_ms: int
    """The same in Unix milliseconds."""
    made_at: str
    """When, as ISO 8601 in UTC."""
    windows: tuple[Window, ...]
    """Every queue that the group reads, also those without a message of the time: they are done from the beginning."""
    identity: str = ""
    """Whose it is: the text of the group's identity. Empty in files of rmqd 0.1.0."""
    is_begun: bool = False
    """Whether the shadow group stands at the windows' beginnings, or further."""

    @property
    def shadow(self) -> str:
        """The shadow group's name."""
        return shadow_name(self.group)

    @property
    def messages(self) -> int:
        """How many there are at most: a filter takes some of them."""
        return sum(window.size for window in self.windows)

    @property
    def ends(self) -> Mapping[MessageQueue, int]:
        """The first offset behind each window."""
        return {window.queue: window.end for window in self.windows}

    def begun(self) -> ReplayPlan:
        """The same, with a shadow group that stands at the beginnings."""
        return replace(self, is_begun=True)

    def to_json(self) -> bytes:
        """As it is kept."""
        windows = [[*asdict(window.queue).values(), window.start, window.end] for window in self.windows]
        names = "group", "since", "until", "from_ms", "to_ms", "made_at", "identity", "is_begun"
        fields = {name: getattr(self, name) for name in names}
        return json.dumps({"form": _FORM, **fields, "windows": windows}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Raises ValueError, KeyError, TypeError."""
        fields = json.loads(data)
        if fields.pop("form") != _FORM:
            raise ValueError("another form")
        windows = tuple(Window(MessageQueue(*place), start, end) for *place, start, end in fields.pop("windows"))
        return cls(**fields, windows=windows)


class ReplayFolder:
    """Where a group's replay keeps its plan, and what it gave up."""

    def __init__(self, state_dir: Path, group: str, identity: Identity) -> None:
        """`group` is its name in the configuration, by which rmqd 0.1.0 named the folder."""
        self.identity = str(identity)
        self._folder = state_dir / "replays" / self.identity
        self._plan = self._folder / _PLAN
        self._former = state_dir / "replays" / group / _PLAN

    def read(self, *, is_forced: bool = False) -> ReplayPlan | None:
        """The plan of a replay that has not come to its end. Raises RmqdError.

        Also for a plan of another cluster or group, unless `is_forced`.
        """
        path = self._plan if self._plan.exists() else self._former
        try:
            plan = ReplayPlan.from_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RmqdError(f"{path} cannot be read as the plan of a replay: {error}") from error
        if plan.identity != self.identity and not is_forced:
            raise RmqdError(
                f"{path} is the plan of {plan.identity or f'{plan.group} on a cluster that rmqd 0.1.0 did not note'}, "
                f"and this is {self.identity}; --force goes on with it here, and without the file a new replay begins"
            )
        return replace(plan, identity=self.identity)

    def write(self, plan: ReplayPlan) -> None:
        """Keep a plan. Raises RmqdError."""
        try:
            make_folder(self._folder)
            replace_file(self._plan, plan.to_json())
            sync_folder(self._folder)
            self._former.unlink(missing_ok=True)
        except OSError as error:
            raise RmqdError(
                f"the replay keeps its plan in {self._folder}, which cannot be written: {error.strerror}; "
                "accepted: --set state_dir=PATH of a folder that this user may write"
            ) from error

    def failures(self, plan: ReplayPlan) -> Failures:
        """Where what the plan's replay gives up is written."""
        return Failures(self._folder / f"failures-{plan.made_at.replace(':', '')}.jsonl")

    def end(self) -> None:
        """Forget the plan. What was given up stays. Raises OSError."""
        self._plan.unlink(missing_ok=True)
        self._former.unlink(missing_ok=True)


class Failures:
    """A file with a JSON document a line for each message that a replay gave up, and why."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, failure: Mapping[str, Any]) -> None:
        """Write one down. Raises OSError."""
        make_folder(self.path.parent)
        with self.path.open("a") as file:
            file.write(json.dumps(failure) + "\n")

    def read(self) -> Sequence[Mapping[str, Any]]:
        """All that were written down, each message once: one may be given up again after a run was cut short."""
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return []
        failures: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for line in lines:
            try:
                one = json.loads(line)
            except ValueError:
                continue  # the run was cut short while it wrote this one, and its message came again
            failures[one["topic"], one["broker"], one["queue"], one["offset"]] = one
        return list(failures.values())
