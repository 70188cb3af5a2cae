"""The commands `rmqd dlq list`, `show`, `replay` and `purge`, and the options that select dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer

from rmqd.cli.terminal.cluster_command import ClusterOptions, ClusterTarget, Confirmation, end_for_errors
from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import GroupName, moment_or_age_ms, name_and_value
from rmqd.cli.terminal.output import Columns, CommandProgress, body_cell, count, message_document, say, say_table, was
from rmqd.errors import ExitCode, RmqdError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.wire.topics import check_group, retry_topic

with import_lazily():
    from rmqd.client import brokers as broker_queries
    from rmqd.client import group_reader, instance
    from rmqd.consumer.handling import send_back
    from rmqd.operate.dead_letters import dead_letter, dead_letter_listing, dead_letter_replay, dead_letter_sending
    from rmqd.operate.queries import message_queries

_MAX_KINDS: Final = 20
_MAX_ERROR: Final = 80
_GROUPS: Final[Columns] = ("group", "left", "messages", ("last", "last_stored_ms"), "brokers")


def _why(letter: dict[str, Any]) -> str:
    """Return a dead letter's exception, if it has one, and reason. The reason alone is often the same for all."""
    reason, lines = letter["reason"] or "-", (letter["exception"] or "").splitlines()
    told = next((line for line in reversed(lines) if line and not line[0].isspace()), "")
    return reason if not told or reason in told else f"{told[:_MAX_ERROR]} ({reason})"


_LETTERS: Final[Columns] = (
    ("came", "stored_at_ms"),
    ("id", "msg_id"),
    ("topic", "origin_topic"),
    ("retries", "reconsume_times"),
    ("reason", _why),
    "keys",
    ("body", body_cell),
)


@dataclass(frozen=True, slots=True)
class LetterOptions:
    """The options that select dead letters."""

    since: Annotated[
        str | None, typer.Option("--since", help="Only letters dead-lettered since a time, or an age (2h)")
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", help="Only letters dead-lettered before a time, or an age (2h)")
    ] = None
    ids: Annotated[list[str] | None, typer.Option("--id", help="Only the message with this id; repeatable")] = None
    keys: Annotated[list[str] | None, typer.Option("--key", help="Only messages with this key; repeatable")] = None
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Only messages with this tag; repeatable")] = None
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="Only messages with this property, as name=value; repeatable")
    ] = None
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only letters with this text in their reason or exception")
    ] = None

    def filter(self) -> dead_letter.DeadLetterFilter:
        """Return the filter that these options describe. Ends the command with 2 if an option is wrong."""
        return dead_letter.DeadLetterFilter(
            None if self.since is None else moment_or_age_ms(self.since, "--since"),
            None if self.until is None else moment_or_age_ms(self.until, "--until"),
            frozenset(self.ids or ()),
            frozenset(self.keys or ()),
            frozenset(self.tags or ()),
            tuple(name_and_value(text, "--property") for text in self.properties or ()),
            self.reason or "",
        )


async def marks_reader(target: ClusterTarget, client: instance.ClientInstance) -> Callable[[str], dead_letter.DlqMarks]:
    """Return a function that takes a group's full name and loads the group's marks. Both functions raise RmqdError."""
    await client.cluster_id.learn(may_write=False)

    def read(group: str) -> dead_letter.DlqMarks:
        marks = dead_letter.DlqMarks(target.state_dir, group)
        marks.use_identity(client.identity(group))
        marks.load()
        return marks

    return read


def list_dead_letters(cluster: ClusterOptions) -> None:
    """List the groups with dead letters: the number left, the number stored, and the time of the last one.

    LEFT is the number of letters that were neither replayed nor purged. Times are UTC.

    Example: rmqd dlq list -o json
    """
    target = cluster.target()

    async def ask(
        brokers: broker_queries.Brokers,
    ) -> tuple[list[dead_letter_listing.DeadLetterCounts], Mapping[str, RmqdError]]:
        read = await marks_reader(target, brokers.client)
        return await dead_letter_listing.list_dead_letters(brokers, read, namespace=target.options.namespace)

    cluster.show(target, ask, partial(say_table, _GROUPS))


def show(
    letters: LetterOptions,
    cluster: ClusterOptions,
    group: GroupName,
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="Number of letters, the newest")] = 20,
    with_settled: Annotated[bool, typer.Option("--all", help="Include replayed and purged letters")] = False,
) -> None:
    """Show the newest unsettled dead letters of a group, oldest first, with the topic of each.

    REASON is the handler's last exception, and rmqd's reason for dead-lettering the message; other clients record none.
    Letters that were replayed or purged are only shown with --all. The command reads them without a group, and does not
    change them. `rmqd message get ID` shows a whole letter.

    Example: rmqd dlq show order-mailer --reason timeout --most 100 -o json
    """
    choice = letters.filter()
    target = cluster.target(group)

    async def ask(
        brokers: broker_queries.Brokers,
    ) -> tuple[list[tuple[message_queries.FoundMessage, dict[str, Any]]], Mapping[str, RmqdError]]:
        name = target.with_namespace(group)
        marks = None if with_settled else (await marks_reader(target, brokers.client))(name)
        newest, errors = await dead_letter_listing.newest_dlq_messages(brokers, name, marks, choice, most + 1)
        if len(newest) > most:
            say([f"rmqd: only the newest {most} are shown; use --most for more"], err=True)
        return [_message_and_causes(letter) for letter in newest[-most:]], errors

    def documents(letters: list[tuple[message_queries.FoundMessage, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [message_document(message) | causes for message, causes in letters]

    cluster.show(target, ask, partial(say_table, _LETTERS), documents)


def _message_and_causes(letter: dead_letter.DlqMessage) -> tuple[message_queries.FoundMessage, dict[str, Any]]:
    message = message_queries.found_message(letter.message, letter.message.broker_name)
    exception = letter.message.stored_properties.get(send_back.RMQD_EXCEPTION)
    return message, {"origin_topic": letter.origin_topic, "reason": letter.reason, "exception": exception}


@dataclass(frozen=True, slots=True)
class _Selection:
    """A group's dead letters that a command selects. `group` is the name as typed, `name` includes the namespace."""

    target: ClusterTarget
    group: str
    name: str
    marks: dead_letter.DlqMarks
    choice: dead_letter.DeadLetterFilter

    @classmethod
    def of(cls, cluster: ClusterOptions, letters: LetterOptions, group: str) -> _Selection:
        """Return the selection that a command's options describe. `plan` loads its marks. Raises InvalidNameError."""
        choice, target = letters.filter(), cluster.target(group)
        name = check_group(target.with_namespace(group))  # checked because it becomes the name of a folder
        return cls(target, group, name, dead_letter.DlqMarks(target.state_dir, name), choice)

    async def plan(
        self, brokers: broker_queries.Brokers, *, to_write: bool
    ) -> tuple[dead_letter_replay.DeadLetterPlan, dict[str, RmqdError]]:
        """Load the marks, and read the dead letters. Returns the plan, and the errors of failed queries by broker name.

        `to_write` locks the marks against other processes. An unknown group raises RmqdError, and no folder is created.
        """
        await dead_letter_replay.check_group_exists(brokers, self.name)
        await brokers.client.cluster_id.learn(may_write=to_write)
        self.marks.use_identity(brokers.client.identity(self.name))
        if to_write:
            self.marks.lock()
        self.marks.load()
        return await dead_letter_replay.make_plan(brokers, self.name, self.marks, self.choice)

    def lines(self, plan: dead_letter_replay.DeadLetterPlan, purpose: str = "") -> list[str]:
        """Return the first lines of a plan: how many dead letters are chosen, by reason and topic."""
        width = len(str(max(plan.reasons.values(), default=0)))
        kinds = plan.reasons.most_common()
        lines = [f"{self.group}: {plan.chosen} of {count(plan.left, 'dead letter')} left{purpose}"]
        lines += [f"  {number:>{width}}  {reason or '(no reason given)'}" for reason, number in kinds[:_MAX_KINDS]]
        if more := kinds[_MAX_KINDS:]:
            lines.append(f"  {sum(number for _, number in more):>{width}}  for {count(len(more), 'other reason')}")
        topics = (f"{topic or '(unknown)'} {number}" for topic, number in plan.topics.most_common(_MAX_KINDS))
        return [*lines, f"of the topics: {', '.join(topics)}"]


def _reasons(kinds: Counter[str | None]) -> list[dict[str, Any]]:
    return [{"reason": reason, "messages": number} for reason, number in kinds.most_common()]


def replay(
    confirmation: Confirmation,
    letters: LetterOptions,
    cluster: ClusterOptions,
    group: GroupName,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Limit in messages per second; 0: no limit")] = 0,
) -> None:
    """Replay a group's dead letters: all that are left, or a selection.

    Each letter is sent to the group's retry topic, which only this group reads, with its topic, keys, tags, properties
    and body unchanged, and with RMQD_REPLAY_ID; its reconsume times begin at 0. While members consume in order, brokers
    dead-letter messages sent there; then the broker copies the letter itself (send-back), and reconsume times continue.
    A group without members receives them later. Groups behind a proxy (gRPC clients) do not read this topic.

    Sent letters are recorded below state_dir: after an interruption, even kill -9, the same command continues, and each
    letter is sent once. It shows a plan and asks for confirmation. Times are the times of dead-lettering.

    Example: rmqd dlq replay order-mailer --reason timeout --since 2h --rate 50
    """
    selection = _Selection.of(cluster, letters, group)
    target = selection.target

    async def make(
        brokers: broker_queries.Brokers,
    ) -> tuple[dead_letter_replay.DeadLetterPlan, list[group_reader.MemberReport], dict[str, RmqdError]]:
        plan, errors = await selection.plan(brokers, to_write=not confirmation.dry_run)
        members, unasked = await dead_letter_replay.members_that_get_copies(brokers, selection.name)
        return plan, members, {**errors, **unasked}

    plan, members, unasked = target.ask_brokers(make)
    if not plan.chosen and not selection.marks.windows:
        none_chosen = f"the options select none of the {count(plan.left, 'dead letter')} left"
        line = none_chosen if plan.left else f"{group} has no dead letters left"
        cluster.say(target.for_output(_replayed(group, plan, dead_letter_replay.ReplayOutcome(), plan.left)), [line])
        end_for_errors(unasked, [target.options.namespace])
        return
    planned = target.for_output(
        _replayed(group, plan, dead_letter_replay.ReplayOutcome(untried=plan.chosen), plan.left)
    )
    orderly = any(one.orderly for one in members)
    lines = target.for_output(_replay_lines(selection, plan, len(members), rate, orderly=orderly))
    confirmation.ask(lines, as_json=cluster.as_json, document=planned)
    outcome = _replay(selection, plan, rate, orderly=orderly)
    left = max(0, plan.left - outcome.sent - outcome.found)
    cluster.say(target.for_output(_replayed(group, plan, outcome, left)), _outcome_lines(outcome, left))
    more = [f"rmqd: {count(outcome.untried, 'message')} {was(outcome.untried)} not tried"] if outcome.untried else []
    more += [f"rmqd: {count(len(outcome.failed), 'message')} failed"] if outcome.failed else []
    errors = {**unasked, **outcome.errors}
    if outcome.sent:  # a broker was reachable, so the exit code is 1 instead of 69
        more, errors = [*(f"rmqd: {where}: {error}" for where, error in errors.items()), *more], {}
    end_for_errors(errors, [target.options.namespace], more)


def _replay(
    selection: _Selection, plan: dead_letter_replay.DeadLetterPlan, rate: float, *, orderly: bool
) -> dead_letter_replay.ReplayOutcome:
    progress = CommandProgress(plan.chosen, "replayed")

    async def run(client: instance.ClientInstance) -> dead_letter_replay.ReplayOutcome:
        one = dead_letter_replay.DeadLetterReplay(
            client,
            selection.name,
            selection.marks,
            selection.choice,
            per_second=rate,
            orderly=orderly,
            on_progress=progress.report,
        )
        with progress:
            return await one.run(plan)

    try:
        return selection.target.ask(run)
    except KeyboardInterrupt:
        fail(ExitCode.INTERRUPTED, "rmqd: interrupted; run the same command to continue")


def _replay_lines(
    selection: _Selection, plan: dead_letter_replay.DeadLetterPlan, members: int, rate: float, *, orderly: bool
) -> list[str]:
    lines = selection.lines(plan)
    if orderly:
        way = "by send-back, because members consume in order: reconsume times continue, one more for each message"
    else:
        way = "as new messages with reconsume times from 0"
    lines.append(f"to {retry_topic(selection.name)}, which only this group reads, {way}")
    lines.append(f"{count(members, 'member')} to handle them" if members else "no members now: messages wait for one")
    if rate:
        lines.append(f"at most {rate:g} per second")
    lines += [f"{number} cannot be replayed: {why}" for why, number in plan.refused.items()]
    if cut := sum(len(window.keys) for window in selection.marks.windows.values()):
        lines.append(f"{cut} {was(cut)} in flight when an earlier run was interrupted; none is sent twice")
    return lines


def _outcome_lines(outcome: dead_letter_replay.ReplayOutcome, left: int) -> list[str]:
    lines = [f"{one.broker}:{one.queue}:{one.offset}  {one.msg_id}  failed: {one.error}" for one in outcome.failed]
    held = [broker for broker, way in outcome.ways.items() if way == "send_back"]
    if held:
        lines.append(f"by send-back on {', '.join(held)}: the group holds queue locks, or its members consume in order")
    earlier = f", {outcome.found} sent before" if outcome.found else ""
    lines.append(f"{outcome.sent} sent{earlier}, {len(outcome.failed)} failed; {left} left")
    return lines


def _replayed(
    group: str, plan: dead_letter_replay.DeadLetterPlan, outcome: dead_letter_replay.ReplayOutcome, left: int
) -> dict[str, Any]:
    return {
        "group": group,
        "topic": retry_topic(group),
        "chosen": plan.chosen,
        "sent": outcome.sent,
        "found": outcome.found,
        "failed": [asdict(one) for one in outcome.failed],
        "untried": outcome.untried,
        "left": left,
        "reasons": _reasons(plan.reasons),
        "topics": dict(plan.topics),
        "ways": outcome.ways,
    }


def purge(confirmation: Confirmation, letters: LetterOptions, cluster: ClusterOptions, group: GroupName) -> None:
    """Settle a group's dead letters without handling them: all that are left, or a selection.

    Brokers cannot delete single messages. Purged letters are marked as settled: `rmqd dlq list`, `show` and `replay`
    omit them from then on. They stay stored until the brokers delete them by age (fileReservedTime, 72 hours by
    default). mqadmin and dashboards still count them, and `rmqd dlq show --all` shows them. Marks are stored below
    state_dir. Up to the first letter that is left they are also stored as the group's offset in its %DLQ% topic, for
    rmqd on other machines. The command shows a plan and asks for confirmation. A mark cannot be removed.

    Example: rmqd dlq purge order-mailer --until 2026-11-01T00:00:00Z --reason "no such order"
    """
    selection = _Selection.of(cluster, letters, group)
    target = selection.target
    plan, unasked = target.ask_brokers(lambda brokers: selection.plan(brokers, to_write=not confirmation.dry_run))
    purged, errors = 0, dict[str, RmqdError]()
    if plan.chosen:
        lines = [
            *selection.lines(plan, ": to be settled without being handled again"),
            "brokers keep them until they expire; rmqd will no longer count, show or replay them",
        ]
        planned = target.for_output(_purged(group, plan, purged))
        confirmation.ask(target.for_output(lines), as_json=cluster.as_json, document=planned)
        progress = CommandProgress(plan.chosen, "settled")
        try:
            purged, errors = target.ask(lambda client: _purge(client, plan, selection, progress))
        except KeyboardInterrupt:
            done = f"{progress.done} of {plan.chosen} settled"
            fail(ExitCode.INTERRUPTED, f"rmqd: interrupted; {done}; run the same command to continue")
    document = target.for_output(_purged(group, plan, purged))
    cluster.say(document, [f"{purged} settled; {document['left']} left"])
    end_for_errors({**unasked, **errors}, [target.options.namespace])


def _purged(group: str, plan: dead_letter_replay.DeadLetterPlan, purged: int) -> dict[str, Any]:
    return {
        "group": group,
        "chosen": plan.chosen,
        "purged": purged,
        "left": max(0, plan.left - purged),
        "reasons": _reasons(plan.reasons),
        "topics": dict(plan.topics),
    }


async def _purge(
    client: instance.ClientInstance,
    plan: dead_letter_replay.DeadLetterPlan,
    selection: _Selection,
    progress: CommandProgress,
) -> tuple[int, dict[str, RmqdError]]:
    purged, errors = 0, dict[str, RmqdError]()
    with progress:
        for queue in plan.queues:
            try:
                async for some in dead_letter_sending.purge(client, queue, selection.marks, selection.choice):
                    purged += some
                    progress.report(purged)
            except RmqdError as error:
                errors[queue.queue.broker_name] = error
    return purged, errors
