"""What `rmqd offsets reset` and `restore` share: plan, question, backup, move, check, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.cluster import ask_cluster, end_for_errors, fail, wrapped
from rmqd.cli.confirm import confirm
from rmqd.cli.offsets_backup import Backup, SavedOffset, now_text
from rmqd.cli.render import count, say, say_json, table
from rmqd.exit_codes import ExitCode

if TYPE_CHECKING:
    from rmqd.cli.against_cluster import Asked
    from rmqd.cli.cluster import Target
    from rmqd.client.instance import ClientInstance
    from rmqd.client.resets.carry_out import MovedQueue, ResetOutcome
    from rmqd.client.resets.goal import Goal
    from rmqd.client.resets.plan import PlannedMove, ResetPlan, Scope
    from rmqd.client.resets.watch import State

Wait = Annotated[str, typer.Option("--wait", help="How long members have to obey")]
_WORDS: dict[State, str] = {
    "moved": "moved, and obeyed",
    "stored": "stored",
    "unchanged": "there already",
    "not_obeyed": "not obeyed",
    "failed": "failed",
}
LONGEST_WAIT = "45s"  # a broker holds a pull for up to 20 s, and an older Java pauses for 10


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be moved, and how."""

    group: str
    topic: str
    goal: Goal
    scope: Scope
    wait_seconds: float
    yes: bool
    dry_run: bool


def change_offsets(asked: Asked, target: Target, change: Change) -> None:
    """Show the plan, ask, and move the group. Ends the command with 1 or 69 where a queue is not where it was sent."""
    from rmqd.wire.namespace import without_namespace

    _refuse_broadcasting(target, change.group)
    options = target.options
    names = wrapped(change.group, options.namespace), wrapped(change.topic, options.namespace)
    plan = ask_cluster(options, lambda client: _plan(client, names, change.goal, change.scope))
    if not plan.due:
        if asked.as_json:
            say_json(_document(change, None, [_as_planned(move) for move in plan.moves], []))
        else:
            say([] if plan.errors else ["nothing to do: every queue is there already"])
        end_for_errors(plan.errors, [options.namespace])
        return
    if change.dry_run and asked.as_json:
        say_json(_document(change, None, [_as_planned(move) for move in plan.moves], []))
    lines = without_namespace(list(_plan_lines(change, plan)), options.namespace)
    confirm(lines, yes=change.yes, dry_run=change.dry_run, err=asked.as_json)
    course = _Course(target, change, plan, names, quiet=asked.as_json)
    try:
        outcome = ask_cluster(options, course.run)
    except KeyboardInterrupt:
        fail(ExitCode.INTERRUPTED, f"rmqd: {course.cut()}")
    if asked.as_json:
        say_json(_document(change, course.path, [_as_moved(one) for one in outcome.queues], _members(outcome)))
    else:
        say(_outcome_lines(outcome))
    end_for_errors(outcome.errors, [options.namespace], _not_obeyed(outcome, change.group))


async def _plan(client: ClientInstance, names: tuple[str, str], goal: Goal, scope: Scope) -> ResetPlan:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.resets.plan import plan_reset

    return await plan_reset(await Brokers.look_up(client), *names, goal, scope)


class _Course:
    """From the answer `yes` on. The plan is made again: a group at work has moved on while the question was read."""

    def __init__(
        self, target: Target, change: Change, confirmed: ResetPlan, names: tuple[str, str], *, quiet: bool
    ) -> None:
        self.path: Path | None = None
        """The backup."""
        self._is_sent = False
        self._target = target
        self._change = change
        self._confirmed = confirmed
        self._names = names
        self._quiet = quiet

    async def run(self, client: ClientInstance) -> ResetOutcome:
        """Move the group, unless nothing is left to do."""
        from rmqd.client.looks.brokers import Brokers
        from rmqd.client.resets.carry_out import carry_out
        from rmqd.client.resets.plan import plan_reset

        brokers = await Brokers.look_up(client)
        plan = await plan_reset(brokers, *self._names, self._fixed_goal(), self._change.scope)
        if plan.due:
            await client.cluster_id.learn()
            self._save(plan, client.cluster_id.id)
        return await carry_out(brokers, plan, self._change.wait_seconds, sent=lambda: self._tell(plan))

    def cut(self) -> str:
        """What stands where it was interrupted, and how to go on."""
        if self.path is None:
            return "interrupted; nothing was changed"
        moved = "was moved; whether its members obeyed was not seen" if self._is_sent else "may be moved in part"
        return (
            f"interrupted; the group {moved}: `rmqd groups show {self._change.group}` tells where it is, "
            f"`rmqd offsets restore {self.path}` undoes it"
        )

    def _fixed_goal(self) -> Goal:
        """A skip counts from what was shown; a queue that has come as far meanwhile is not sent back."""
        from rmqd.client.resets.goal import Goal

        if self._change.goal.kind != "skip":
            return self._change.goal
        shown = {(move.queue.broker_name, move.queue.queue_id): move.wanted for move in self._confirmed.moves}
        return Goal("exact", offsets=shown, forward_only=True)

    def _save(self, plan: ResetPlan, cluster: str) -> None:
        change, target = self._change, self._target
        saved = tuple(
            SavedOffset(move.queue.broker_name, move.queue.queue_id, move.place.committed) for move in plan.moves
        )
        options = target.options
        where = options.namespace, options.shown_nameserver
        backup = Backup(change.group, change.topic, *where, now_text(), saved, cluster)
        folder = target.state_dir / "backups"
        try:
            self.path = backup.write(folder)
        except OSError as error:
            fail(
                ExitCode.FAILURE,
                f"rmqd: no backup can be written to {folder}, so nothing was changed: {error.strerror or error}; "
                "--set state_dir=PATH names another folder",
            )
        if not self._quiet:
            say([f"backup: {self.path}"])

    def _tell(self, plan: ResetPlan) -> None:
        self._is_sent = True
        if not self._quiet and plan.due and plan.places.members:
            say([f"told; waiting for {count(len(plan.places.members), 'member')} to obey"])


def _refuse_broadcasting(target: Target, group: str) -> None:
    if target.config is None or group not in target.config.groups:
        return
    if target.config.groups[group].message_model == "broadcasting":
        from rmqd.client.resets.plan import broadcasting

        fail(ExitCode.FAILURE, f"rmqd: {broadcasting(group)}")


def _plan_lines(change: Change, plan: ResetPlan) -> Iterable[str]:
    due = plan.due
    gained, skipped = sum(move.gained for move in due), sum(move.skipped for move in due)
    yield (
        f"{change.group}, {change.topic}: {count(len(due), 'queue')} to move, "
        f"{count(gained, 'message')} handled again, {skipped} skipped"
    )
    rows = [
        (
            move.queue.broker_name,
            str(move.queue.queue_id),
            _offset(move.place.committed),
            str(move.target),
            _effect(move),
            move.place.owner or "-",
        )
        for move in plan.moves
    ]
    yield from table(("broker", "queue", "from", "to", "messages", "member"), rows)
    for name, error in plan.errors.items():
        yield f"{name} stays as it is: {error}"
    if any(move.place.is_popped for move in plan.moves):
        yield "popped: messages that members have now are theirs until they are acknowledged or shown again"
    if not plan.places.members:
        yield "no member reads the topic now: the offsets are stored"
    yield "the topic's retries, and the group's other topics, stay as they are"


def _effect(move: PlannedMove) -> str:
    cut = "" if move.target == move.wanted else f", as it has {move.ends.min_offset} to {move.ends.max_offset}"
    if not move.is_due:
        return f"stays{cut}"
    if move.gained:
        return f"{move.gained} again{cut}"
    return (f"{move.skipped} skipped" if move.skipped else "none") + cut


def _outcome_lines(outcome: ResetOutcome) -> Iterable[str]:
    states = Counter(one.state for one in outcome.queues)
    yield ", ".join(f"{count(states[state], 'queue')} {word}" for state, word in _WORDS.items() if states[state])


def _not_obeyed(outcome: ResetOutcome, group: str) -> list[str]:
    """A line for each queue that is not where it was sent, and one with the next step.

    Errors of brokers have lines of their own.
    """
    lines = []
    not_obeyed = [one for one in outcome.queues if one.state == "not_obeyed"]
    for one in not_obeyed:
        where, now = f"{one.move.queue.broker_name} queue {one.move.queue.queue_id}", one.now
        at = "" if now.held is None else f", which is at {now.held.commit_offset}"
        who = f"member {now.owner}{at}" if now.owner else "no member that answers has it"
        lines.append(f"rmqd: {where}: sent to {one.move.target}, stored {_offset(now.committed)}; {who}")
    if lines and outcome.silent:
        lines.append(f"rmqd: these members do not say what they have: {', '.join(sorted(outcome.silent))}")
    asked = {one.move.queue.broker_name for one in not_obeyed}
    if asked - outcome.pushed_by:
        lines.append(
            f"rmqd: brokers keep a reset for the member's next pull: look again with `rmqd groups show {group}`"
        )
    if pushed := sorted(asked & outcome.pushed_by):
        lines.append(
            f"rmqd: {', '.join(pushed)} pushed the reset to the members, and keeps nothing for one that did not hear "
            f"of it: look again with `rmqd groups show {group}`, and reset again, or with the members stopped"
        )
    return lines


def _members(outcome: ResetOutcome) -> list[dict[str, object]]:
    late = {one.now.owner for one in outcome.queues if one.state == "not_obeyed"}
    return [
        {"client_id": one, "answers": one not in outcome.silent, "obeyed": one not in late}
        for one in sorted(outcome.members)
    ]


def _document(
    change: Change, path: Path | None, queues: list[dict[str, Any]], members: list[dict[str, object]]
) -> dict[str, Any]:
    return {
        "group": change.group,
        "topic": change.topic,
        "backup": None if path is None else str(path),
        "queues": queues,
        "members": members,
    }


def _as_planned(move: PlannedMove) -> dict[str, Any]:
    return {
        "broker": move.queue.broker_name,
        "queue": move.queue.queue_id,
        "from": move.place.committed,
        "to": move.target,
        "gained": move.gained,
        "skipped": move.skipped,
        "member": move.place.owner or None,
        "state": "planned" if move.is_due else "unchanged",
        "committed": move.place.committed,
        "error": None,
    }


def _as_moved(one: MovedQueue) -> dict[str, Any]:
    return {
        **_as_planned(one.move),
        "member": one.now.owner or None,
        "state": one.state,
        "committed": one.now.committed,
        "error": one.error or None,
    }


def _offset(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
