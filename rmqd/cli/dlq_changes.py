"""`rmqd dlq replay` and `rmqd dlq purge`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from rmqd.cli.dlq import LetterOptions, kinds_document, kinds_lines, read_marks, topics_text, unread_marks
from rmqd.cli.terminal.cluster_command import ClusterOptions, ClusterTarget, Confirmation, end_for_errors
from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import GroupName
from rmqd.cli.terminal.output import CommandProgress, count, say, say_json, was
from rmqd.client.brokers import Brokers
from rmqd.client.instance import ClientInstance
from rmqd.errors import ExitCode, RmqdError
from rmqd.operate.dead_letters import dead_letter_sending
from rmqd.operate.dead_letters.dead_letter import DeadLetterFilter, Marks
from rmqd.operate.dead_letters.dead_letter_replay import Plan, Receivers, Replay, ReplayOutcome, make_plan, receivers
from rmqd.wire.topics import retry_topic, without_namespace


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """The arguments. `group` is as brokers know it."""

    group: str
    marks: Marks
    choice: DeadLetterFilter
    rate: float


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
    choice = letters.filter()
    target = cluster.target(group)
    namespace = target.options.namespace
    name = target.wrapped(group)
    task = ReplayTask(name, unread_marks(target, name), choice, rate)
    plan, who, unasked = target.ask(lambda client: _plan(client, task, to_write=not confirmation.dry_run))
    if not plan.chosen and not task.marks.windows:
        _nothing(cluster, group, namespace, plan)
        end_for_errors(unasked, [namespace])
        return
    if confirmation.dry_run and cluster.as_json:
        say_json(_document(group, namespace, plan, ReplayOutcome(untried=plan.chosen), plan.left))
    confirmation.ask(_plan_lines(group, namespace, task, plan, who), err=cluster.as_json)
    outcome = _carry_out(target, task, plan, who)
    left = plan.left - outcome.sent - outcome.found
    if cluster.as_json:
        say_json(_document(group, namespace, plan, outcome, max(0, left)))
    else:
        say(_outcome_lines(outcome, max(0, left)))
    more = [f"rmqd: {count(outcome.untried, 'message')} {was(outcome.untried)} not tried"] if outcome.untried else []
    more += [f"rmqd: {count(len(outcome.failed), 'message')} failed"] if outcome.failed else []
    errors = {**unasked, **outcome.errors}
    if outcome.sent:  # the cluster can be reached, at least partly
        more, errors = [*(f"rmqd: {where}: {error}" for where, error in errors.items()), *more], {}
    end_for_errors(errors, [namespace], more)


async def _plan(
    client: ClientInstance, task: ReplayTask, *, to_write: bool
) -> tuple[Plan, Receivers, dict[str, RmqdError]]:
    brokers = await read_marks(client, task.group, task.marks, to_write=to_write)
    plan, errors = await make_plan(brokers, task.group, task.marks, task.choice)
    who, unasked = await receivers(brokers, task.group)
    return plan, who, {**errors, **unasked}


def _carry_out(target: ClusterTarget, task: ReplayTask, plan: Plan, who: Receivers) -> ReplayOutcome:
    progress = CommandProgress(plan.chosen, "replayed")

    async def run(client: ClientInstance) -> ReplayOutcome:
        brokers = await Brokers.look_up(client)
        one = Replay(
            brokers,
            task.group,
            task.marks,
            task.choice,
            per_second=task.rate,
            orderly=who.is_orderly,
            on_progress=progress.report,
        )
        with progress:
            return await one.run(plan)

    try:
        return target.ask(run)
    except KeyboardInterrupt:
        fail(ExitCode.INTERRUPTED, "rmqd: interrupted; run the same command to continue")


def _nothing(cluster: ClusterOptions, group: str, namespace: str, plan: Plan) -> None:
    if cluster.as_json:
        say_json(_document(group, namespace, plan, ReplayOutcome(), plan.left))
    elif plan.left:
        say([f"the options select none of the {count(plan.left, 'dead letter')} left"])
    else:
        say([f"{group} has no dead letters left"])


def _plan_lines(group: str, namespace: str, task: ReplayTask, plan: Plan, who: Receivers) -> list[str]:
    lines = [f"{group}: {plan.chosen} of {count(plan.left, 'dead letter')} left", *kinds_lines(plan.reasons)]
    lines.append(f"of the topics: {topics_text(plan.topics)}")
    if who.is_orderly:
        way = "by send-back, because members consume in order: reconsume times continue, one more for each message"
    else:
        way = "as new messages with reconsume times from 0"
    lines.append(f"to {retry_topic(task.group)}, which only this group reads, {way}")
    lines.append(
        f"{count(who.members, 'member')} to handle them" if who.members else "no members now: they wait for one"
    )
    if task.rate:
        lines.append(f"at most {task.rate:g} per second")
    lines += [f"{number} cannot be replayed: {why}" for why, number in plan.refused.items()]
    if cut := sum(len(window.keys) for window in task.marks.windows.values()):
        lines.append(f"{cut} {was(cut)} in flight when an earlier run was interrupted; none is sent twice")
    return without_namespace(lines, namespace)


def _outcome_lines(outcome: ReplayOutcome, left: int) -> list[str]:
    lines = [f"{one.broker}:{one.queue}:{one.offset}  {one.msg_id}  failed: {one.error}" for one in outcome.failed]
    held = [broker for broker, way in outcome.ways.items() if way == "send_back"]
    if held:
        lines.append(f"by send-back on {', '.join(held)}: the group holds queue locks, or its members consume in order")
    earlier = f", {outcome.found} sent before" if outcome.found else ""
    lines.append(f"{outcome.sent} sent{earlier}, {len(outcome.failed)} failed; {left} left")
    return lines


def _document(group: str, namespace: str, plan: Plan, outcome: ReplayOutcome, left: int) -> dict[str, Any]:
    document = {
        "group": group,
        "topic": retry_topic(group),
        "chosen": plan.chosen,
        "sent": outcome.sent,
        "found": outcome.found,
        "failed": [asdict(one) for one in outcome.failed],
        "untried": outcome.untried,
        "left": left,
        "reasons": kinds_document(plan.reasons),
        "topics": dict(plan.topics),
        "ways": outcome.ways,
    }
    return without_namespace(document, namespace)


def purge(confirmation: Confirmation, letters: LetterOptions, cluster: ClusterOptions, group: GroupName) -> None:
    """Settle a group's dead letters without handling them: all that are left, or a selection.

    Brokers cannot delete single messages. Purged letters are marked as settled: `rmqd dlq list`, `show` and `replay`
    omit them from then on. They stay stored until the brokers delete them by age (fileReservedTime, 72 hours by
    default). mqadmin and dashboards still count them, and `rmqd dlq show --all` shows them. Marks are stored below
    state_dir. Up to the first letter that is left they are also stored as the group's offset in its %DLQ% topic, for
    rmqd on other machines. The command shows a plan and asks for confirmation. A mark cannot be removed.

    Example: rmqd dlq purge order-mailer --until 2026-11-01T00:00:00Z --reason "no such order"
    """
    choice = letters.filter()
    target = cluster.target(group)
    namespace = target.options.namespace
    name = target.wrapped(group)
    marks = unread_marks(target, name)
    plan, unasked = target.ask(
        lambda client: _plan_purge(client, name, marks, choice, to_write=not confirmation.dry_run)
    )
    purged, errors = 0, dict[str, RmqdError]()
    if confirmation.dry_run and cluster.as_json:
        say_json(_purge_document(group, namespace, plan, purged))
    if plan.chosen:
        confirmation.ask(_purge_lines(group, namespace, plan), err=cluster.as_json)
        progress = CommandProgress(plan.chosen, "settled")
        try:
            purged, errors = target.ask(lambda client: _purge(client, plan, marks, choice, progress))
        except KeyboardInterrupt:
            done = f"{progress.done} of {plan.chosen} settled"
            fail(ExitCode.INTERRUPTED, f"rmqd: interrupted; {done}; run the same command to continue")
    if not cluster.as_json:
        say([f"{purged} settled; {max(0, plan.left - purged)} left"])
    elif not confirmation.dry_run:
        say_json(_purge_document(group, namespace, plan, purged))
    end_for_errors({**unasked, **errors}, [namespace])


def _purge_lines(group: str, namespace: str, plan: Plan) -> list[str]:
    lines = [
        f"{group}: {plan.chosen} of {count(plan.left, 'dead letter')} left: to be settled without being handled again",
        *kinds_lines(plan.reasons),
        f"of the topics: {topics_text(plan.topics)}",
        "brokers keep them until they expire; rmqd will no longer count, show or replay them",
    ]
    return without_namespace(lines, namespace)


def _purge_document(group: str, namespace: str, plan: Plan, purged: int) -> dict[str, Any]:
    document = {
        "group": group,
        "chosen": plan.chosen,
        "purged": purged,
        "left": max(0, plan.left - purged),
        "reasons": kinds_document(plan.reasons),
        "topics": dict(plan.topics),
    }
    return without_namespace(document, namespace)


async def _plan_purge(
    client: ClientInstance, group: str, marks: Marks, choice: DeadLetterFilter, *, to_write: bool
) -> tuple[Plan, dict[str, RmqdError]]:
    brokers = await read_marks(client, group, marks, to_write=to_write)
    return await make_plan(brokers, group, marks, choice)


async def _purge(
    client: ClientInstance, plan: Plan, marks: Marks, choice: DeadLetterFilter, progress: CommandProgress
) -> tuple[int, dict[str, RmqdError]]:
    purged, errors = 0, dict[str, RmqdError]()
    with progress:
        for queue in plan.queues:
            try:
                async for some in dead_letter_sending.purge(client, queue, marks, choice):
                    purged += some
                    progress.report(purged)
            except RmqdError as error:
                errors[queue.queue.broker_name] = error
    return purged, errors
