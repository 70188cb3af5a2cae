"""`rmqd dlq replay`: replays dead letters to their group."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli import dlq_choice
from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import ask_cluster, end_for_errors, fail, wrapped
from rmqd.cli.confirm import DryRun, Yes, confirm
from rmqd.cli.dlq_choice import kinds_document, kinds_lines, topics_text
from rmqd.cli.progress import Progress
from rmqd.cli.render import count, say, say_json, was
from rmqd.exit_codes import ExitCode

if TYPE_CHECKING:
    from rmqd.cli.cluster import Target
    from rmqd.client.instance import ClientInstance
    from rmqd.consumer.dead_letters.choice import Choice
    from rmqd.consumer.dead_letters.marks import Marks
    from rmqd.consumer.dead_letters.plan import Plan, Receivers
    from rmqd.consumer.dead_letters.replay import Outcome
    from rmqd.errors import RmqdError

HELP = """\
Each letter is sent to the group's retry topic, which only this group reads, with its topic, keys, tags, properties and
body unchanged, and with RMQD_REPLAY_ID; its reconsume times begin at 0. While members consume in order, brokers
dead-letter messages sent there; then the broker copies the letter itself (send-back), and reconsume times continue. A
group without members receives them later. Groups behind a proxy (gRPC clients) do not read this topic.

Sent letters are recorded below state_dir: after an interruption, even kill -9, the same command continues, and each
letter is sent once. It shows a plan and asks for confirmation. Times are the times of dead-lettering.

Example: rmqd dlq replay order-mailer --reason timeout --since 2h --rate 50
"""


@dataclass(frozen=True, slots=True)
class Task:
    """The arguments. `group` is as brokers know it."""

    group: str
    marks: Marks
    choice: Choice
    rate: float


@against_cluster
@dlq_choice.choosing
def replay(
    asked: Asked,
    choice: Choice,
    group: dlq_choice.GroupName,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Limit in messages per second; 0: no limit")] = 0,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Replay a group's dead letters."""
    target = asked.target(group)
    namespace = target.options.namespace
    name = wrapped(group, namespace)
    task = Task(name, dlq_choice.unread_marks(target, name), choice, rate)
    plan, who, unasked = ask_cluster(target.options, lambda client: _plan(client, task, to_write=not dry_run))
    if not plan.chosen and not task.marks.windows:
        _nothing(asked, group, namespace, plan)
        end_for_errors(unasked, [namespace])
        return
    if dry_run and asked.as_json:
        from rmqd.consumer.dead_letters.replay import Outcome

        say_json(_document(group, namespace, plan, Outcome(untried=plan.chosen), plan.left))
    confirm(_plan_lines(group, namespace, task, plan, who), yes=yes, dry_run=dry_run, err=asked.as_json)
    outcome = _carry_out(target, task, plan, who)
    left = plan.left - outcome.sent - outcome.found
    if asked.as_json:
        say_json(_document(group, namespace, plan, outcome, max(0, left)))
    else:
        say(_outcome_lines(outcome, max(0, left)))
    more = [f"rmqd: {count(outcome.untried, 'message')} {was(outcome.untried)} not tried"] if outcome.untried else []
    more += [f"rmqd: {count(len(outcome.failed), 'message')} failed"] if outcome.failed else []
    errors = {**unasked, **outcome.errors}
    if outcome.sent:  # the cluster can be reached, at least partly
        more, errors = [*(f"rmqd: {where}: {error}" for where, error in errors.items()), *more], {}
    end_for_errors(errors, [namespace], more)


async def _plan(client: ClientInstance, task: Task, *, to_write: bool) -> tuple[Plan, Receivers, dict[str, RmqdError]]:
    from rmqd.consumer.dead_letters.plan import make_plan, receivers

    brokers = await dlq_choice.read_marks(client, task.group, task.marks, to_write=to_write)
    plan, errors = await make_plan(brokers, task.group, task.marks, task.choice)
    who, unasked = await receivers(brokers, task.group)
    return plan, who, {**errors, **unasked}


def _carry_out(target: Target, task: Task, plan: Plan, who: Receivers) -> Outcome:
    progress = Progress(plan.chosen, "replayed")

    async def run(client: ClientInstance) -> Outcome:
        from rmqd.client.looks.brokers import Brokers
        from rmqd.consumer.dead_letters.replay import Replay

        brokers = await Brokers.look_up(client)
        one = Replay(
            brokers,
            task.group,
            task.marks,
            task.choice,
            per_second=task.rate,
            orderly=who.is_orderly,
            tell=progress.tell,
        )
        with progress:
            return await one.run(plan)

    try:
        return ask_cluster(target.options, run)
    except KeyboardInterrupt:
        fail(ExitCode.INTERRUPTED, "rmqd: interrupted; run the same command to continue")


def _nothing(asked: Asked, group: str, namespace: str, plan: Plan) -> None:
    from rmqd.consumer.dead_letters.replay import Outcome

    if asked.as_json:
        say_json(_document(group, namespace, plan, Outcome(), plan.left))
    elif plan.left:
        say([f"the options select none of the {count(plan.left, 'dead letter')} left"])
    else:
        say([f"{group} has no dead letters left"])


def _plan_lines(group: str, namespace: str, task: Task, plan: Plan, who: Receivers) -> list[str]:
    from rmqd.wire.namespace import without_namespace
    from rmqd.wire.topics import retry_topic

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


def _outcome_lines(outcome: Outcome, left: int) -> list[str]:
    lines = [f"{one.broker}:{one.queue}:{one.offset}  {one.msg_id}  failed: {one.error}" for one in outcome.failed]
    held = [broker for broker, way in outcome.ways.items() if way == "send_back"]
    if held:
        lines.append(f"by send-back on {', '.join(held)}: the group holds queue locks, or its members consume in order")
    earlier = f", {outcome.found} sent before" if outcome.found else ""
    lines.append(f"{outcome.sent} sent{earlier}, {len(outcome.failed)} failed; {left} left")
    return lines


def _document(group: str, namespace: str, plan: Plan, outcome: Outcome, left: int) -> dict[str, Any]:
    from rmqd.wire.namespace import without_namespace
    from rmqd.wire.topics import retry_topic

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
