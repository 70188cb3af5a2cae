"""The steps that `rmqd offsets reset` and `restore` share: plan, confirmation, backup, reset, verification, outcome.

The backup is a file with a group's offsets before the reset. `rmqd offsets restore` resets the group to these offsets.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rmqd.cli.terminal.cluster_command import ClusterOptions, ClusterTarget, Confirmation, end_for_errors
from rmqd.cli.terminal.commands import Failed, fail
from rmqd.cli.terminal.output import Columns, count, document_table, say
from rmqd.client.brokers import Brokers
from rmqd.errors import ExitCode
from rmqd.operate.resets.reset_plan import OffsetChange, PlannedQueueReset, ResetPlan, plan_reset
from rmqd.operate.resets.reset_requests import QueueResetOutcome, QueueResetState, ResetOutcome, apply_reset_plan
from rmqd.runtime.files import make_folder, replace_file, sync_folder
from rmqd.wire.topics import unwrap_namespace

_FORM: Final = "rmqd offsets 1"
_LONGEST: Final = 180  # group and topic are cut to this length in file names; the file contains the full names


@dataclass(frozen=True, slots=True)
class SavedOffset:
    """A group's offset in one queue at the time of the backup; None if the group had no offset."""

    broker: str
    queue: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Backup:
    """A group's offsets in a topic, as stored in a backup file. Names are without the namespace."""

    group: str
    topic: str
    namespace: str
    nameserver: str
    made_at: str
    """When the backup was made, as ISO 8601 in UTC."""
    offsets: tuple[SavedOffset, ...]
    cluster: str = ""
    """The id of the cluster; empty if the cluster has none, or if rmqd 0.1.0 wrote the file."""

    def mismatch_error(self, cluster: str, nameserver: str, namespace: str) -> str:
        """Return an error text if the backup was made on another cluster or in another namespace; otherwise ""."""
        is_same = self.cluster == cluster if self.cluster and cluster else self.nameserver == nameserver
        if is_same and self.namespace == namespace:
            return ""
        return (
            f"the backup is of cluster {self.cluster or 'without an id'} (name servers {self.nameserver}, namespace "
            f"{self.namespace!r}), but this cluster is {cluster or 'without an id'} (name servers {nameserver}, "
            f"namespace {namespace!r}); --force applies the backup anyway"
        )

    def write(self, folder: Path) -> Path:
        """Write the backup to a new file in `folder`, which is created if missing. Returns the path. Raises OSError."""
        make_folder(folder)
        names = f"{self.group}-{self.topic}"[:_LONGEST]
        name = f"{names}-{self.made_at}".replace(":", "")
        path = folder / f"{name}.json"
        replace_file(path, f"{json.dumps({'form': _FORM, **asdict(self)}, indent=2)}\n".encode())
        sync_folder(folder)
        return path

    @classmethod
    def read(cls, path: Path) -> Backup:
        """Read a backup file. Raises OSError, and ValueError if the file is not a backup."""
        document: Any = json.loads(path.read_text())
        if not isinstance(document, dict) or document.pop("form", None) != _FORM:
            raise ValueError(f"expected a file of the form `{_FORM}`")
        try:
            saved = tuple(_saved(one) for one in document.pop("offsets"))
            backup = cls(**document, offsets=saved)
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from None
        if not all(isinstance(value, str) for name, value in asdict(backup).items() if name != "offsets"):
            raise ValueError("names and times must be texts")
        return backup


def now_text() -> str:
    """Return the current time as ISO 8601 in UTC, with microseconds."""
    moment = time.time_ns() // 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 10**6)) + f".{moment % 10**6:06}Z"


def _saved(document: dict[str, Any]) -> SavedOffset:
    one = SavedOffset(**document)
    numbers = (one.queue, 0 if one.offset is None else one.offset)
    if type(one.broker) is not str or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"{document} is not a queue with its offset")
    return one


_MOVES: Final[Columns] = ("broker", "queue", "from", "to", ("messages", "effect"), "member")
_WORDS: dict[QueueResetState, str] = {
    "moved": "reset, and applied by members",
    "stored": "stored",
    "unchanged": "there already",
    "not_obeyed": "not obeyed",
    "failed": "failed",
}


def change_offsets(
    cluster: ClusterOptions,
    target: ClusterTarget,
    changes: Sequence[OffsetChange],
    *,
    wait_seconds: float,
    confirmation: Confirmation,
    as_list: bool = False,
) -> None:
    """Show the plan of each change, ask for confirmation, and reset the group's offsets in each topic.

    With `-o json`, print a list with a document for each change; without `as_list`, print the document of the only
    change. If a queue did not reach its target, end the command with 1 or 69.
    """

    async def plan_all(brokers: Brokers) -> list[ResetPlan]:
        return [await plan_reset(brokers, change) for change in changes]

    def document(documents: list[dict[str, Any]]) -> object:
        return documents if as_list else documents[0]

    namespaces = [target.options.namespace]
    plans = target.ask_brokers(plan_all)
    documents = [target.for_output(_document(plan)) for plan in plans]
    errors = {
        f"{one['topic']}: {name}" if as_list else name: error
        for one, plan in zip(documents, plans, strict=True)
        if not plan.due
        for name, error in plan.errors.items()
    }
    if not any(plan.due for plan in plans):
        cluster.say(document(documents), [] if errors else ["nothing to do: every queue is at its target"])
        end_for_errors(errors, namespaces)
        return
    shown = [line for plan in plans for line in _plan_lines(plan)]
    others = "the group's retries" if as_list else "the topic's retries, and the group's other topics,"
    shown.append(f"{others} are not reset")
    confirmation.ask(target.for_output(shown), as_json=cluster.as_json, document=document(documents))
    lines: list[str] = []
    missed: list[str] = []
    earlier: list[str] = []
    for at, plan in enumerate(plans):
        if not plan.due:
            continue
        topic = documents[at]["topic"]
        reset = _ConfirmedReset(target, plan, wait_seconds, quiet=cluster.as_json)
        try:
            outcome = target.ask_brokers(reset.run)
        except KeyboardInterrupt:
            fail(ExitCode.INTERRUPTED, f"rmqd: {reset.interruption()}", problems=earlier)
        except Failed:
            say(earlier, err=True)
            raise
        documents[at] |= {"backup": reset.backup and str(reset.backup), **_result(outcome)}
        prefix = f"{topic}: " if as_list else ""
        lines += [f"{prefix}{line}" for line in _outcome_lines(outcome)]
        missed += [f"{prefix}{line}" for line in _not_obeyed(outcome, documents[at]["group"])]
        errors |= {f"{prefix}{name}": error for name, error in outcome.errors.items()}
        if reset.backup is not None:
            earlier.append(f"rmqd: {topic} was reset before; `rmqd offsets restore {reset.backup}` undoes it")
    cluster.say(document(documents), lines)
    end_for_errors(errors, namespaces, missed)


class _ConfirmedReset:
    """A reset after its confirmation. The plan is made again, because members may have handled messages meanwhile."""

    def __init__(self, target: ClusterTarget, shown: ResetPlan, wait_seconds: float, *, quiet: bool) -> None:
        self.backup: Path | None = None
        self._is_sent = False
        self._target = target
        self._shown = shown
        self._wait_seconds = wait_seconds
        self._quiet = quiet

    async def run(self, brokers: Brokers) -> ResetOutcome:
        """Write the backup, reset the group and wait for its members. If no queue needs a reset, write no backup."""
        plan, cluster_id = await plan_reset(brokers, self._shown.confirmed), brokers.client.cluster_id
        if plan.due:
            await cluster_id.learn()
            self._save(plan, cluster_id.id)
        return await apply_reset_plan(brokers, plan, self._wait_seconds, sent=lambda: self._print_sent(plan))

    def interruption(self) -> str:
        """Return a text for the user after Ctrl-C: whether the group was reset, and the next steps."""
        namespace, change = self._target.options.namespace, self._shown.change
        if self.backup is None:
            return f"interrupted; {unwrap_namespace(change.topic, namespace)} was not reset"
        moved = "was reset; whether its members applied it is unknown" if self._is_sent else "may be reset in part"
        group = unwrap_namespace(change.group, namespace)
        return (
            f"interrupted; the group {moved}: `rmqd groups show {group}` shows its offsets, "
            f"`rmqd offsets restore {self.backup}` undoes it"
        )

    def _save(self, plan: ResetPlan, cluster: str) -> None:
        options, folder = self._target.options, self._target.state_dir / "backups"
        saved = tuple(
            SavedOffset(move.queue.broker_name, move.queue.queue_id, move.place.committed) for move in plan.moves
        )
        group, topic = (unwrap_namespace(name, options.namespace) for name in (plan.change.group, plan.change.topic))
        where = options.joined_namespaces, options.nameserver_for_output
        try:
            self.backup = Backup(group, topic, *where, now_text(), saved, cluster).write(folder)
        except OSError as error:
            fail(
                ExitCode.FAILURE,
                f"rmqd: the backup cannot be written to {folder}, so {topic} is not reset: {error.strerror or error}; "
                "use another folder with --set state_dir=PATH",
            )
        if not self._quiet:
            say([f"backup: {self.backup}"])

    def _print_sent(self, plan: ResetPlan) -> None:
        self._is_sent = True
        if not self._quiet and plan.due and plan.places.members:
            say([f"sent; waiting for {count(len(plan.places.members), 'member')} to apply the reset"])


def _plan_lines(plan: ResetPlan) -> Iterable[str]:
    due = plan.due
    above = [move for move in due if move.starts_above_end]
    gained = sum(move.handled_again for move in due if move not in above)
    skipped = sum(move.skipped for move in due)
    yield (
        f"{plan.change.group}, {plan.change.topic}: {count(len(due), 'queue')} to reset, "
        f"{count(gained, 'message')} handled again, {skipped} skipped"
    )
    yield from document_table(_MOVES, [_as_planned(move) | {"effect": _effect(move)} for move in plan.moves])
    if above:
        left_out = sum(move.target - move.ends.min_offset for move in above)
        all_of_them = f"`rmqd offsets reset {plan.change.group} {plan.change.topic} --to first` handles all of them"
        yield (
            f"FROM is above the end of {count(len(above), 'queue')}. If the topic was recreated, no member has handled "
            f"their messages: this reset handles {sum(move.handled_again for move in above)} and skips {left_out}"
            f"{f' ({all_of_them})' if left_out else ''}. Otherwise they were handled before"
        )
    for name, error in plan.errors.items():
        yield f"{name} is not reset: {error}"
    if any(move.place.is_popped for move in plan.moves):
        yield "popped: members keep popped messages until they acknowledge them or pop_invisible_time ends"
    if not plan.places.members:
        yield "no members read the topic now, so the offsets are only stored"


def _effect(move: PlannedQueueReset) -> str:
    cut = "" if move.target == move.wanted else f", because it has {move.ends.min_offset} to {move.ends.max_offset}"
    if not move.is_due:
        return f"stays{cut}"
    if move.starts_above_end:
        return f"{move.handled_again or 'none'}, it ends at {move.ends.max_offset}{cut}"
    if move.handled_again:
        return f"{move.handled_again} again{cut}"
    return (f"{move.skipped} skipped" if move.skipped else "none") + cut


def _outcome_lines(outcome: ResetOutcome) -> Iterable[str]:
    states = Counter(one.state for one in outcome.queues)
    yield ", ".join(f"{count(states[state], 'queue')} {word}" for state, word in _WORDS.items() if states[state])


def _not_obeyed(outcome: ResetOutcome, group: str) -> list[str]:
    """Return a line for each queue that did not reach its target before the timeout, and lines with the next steps.

    Errors of brokers are not included.
    """
    lines = []
    not_obeyed = [one for one in outcome.queues if one.state == "not_obeyed"]
    for one in not_obeyed:
        where, now = f"{one.move.queue.broker_name} queue {one.move.queue.queue_id}", one.now
        at = "" if now.held is None else f", which is at {now.held.commit_offset}"
        who = f"member {now.owner}{at}" if now.owner else "no member reports owning it"
        stored = "-" if now.committed is None else now.committed
        lines.append(f"rmqd: {where}: target {one.move.target}, stored {stored}; {who}")
    if lines and outcome.silent:
        lines.append(f"rmqd: these members do not report their queues: {', '.join(sorted(outcome.silent))}")
    asked = {one.move.queue.broker_name for one in not_obeyed}
    if asked - outcome.pushed_by:
        lines.append(
            f"rmqd: brokers keep a reset for the member's next pull; check again with `rmqd groups show {group}`"
        )
    if pushed := sorted(asked & outcome.pushed_by):
        lines.append(
            f"rmqd: {', '.join(pushed)} pushed the reset to the members once; check with `rmqd groups show {group}`. "
            "If a member missed it, stop the members and reset again"
        )
    return lines


def _document(plan: ResetPlan) -> dict[str, Any]:
    queues = [_as_planned(move) for move in plan.moves]
    names = {"group": plan.change.group, "topic": plan.change.topic}
    return {**names, "backup": None, "queues": queues, "members": list[object]()}


def _result(outcome: ResetOutcome) -> dict[str, Any]:
    late = {one.now.owner for one in outcome.queues if one.state == "not_obeyed"}
    members = [
        {"client_id": one, "answers": one not in outcome.silent, "obeyed": one not in late}
        for one in sorted(outcome.members)
    ]
    return {"queues": [_as_moved(one) for one in outcome.queues], "members": members}


def _as_planned(move: PlannedQueueReset) -> dict[str, Any]:
    return {
        "broker": move.queue.broker_name,
        "queue": move.queue.queue_id,
        "from": move.place.committed,
        "to": move.target,
        "gained": move.handled_again,
        "skipped": move.skipped,
        "member": move.place.owner or None,
        "state": "planned" if move.is_due else "unchanged",
        "committed": move.place.committed,
        "error": None,
    }


def _as_moved(one: QueueResetOutcome) -> dict[str, Any]:
    return {
        **_as_planned(one.move),
        "member": one.now.owner or None,
        "state": one.state,
        "committed": one.now.committed,
        "error": one.error or None,
    }
