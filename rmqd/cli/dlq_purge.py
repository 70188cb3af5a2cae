"""`rmqd dlq purge`: settles dead letters without handling them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmqd.cli import dlq_choice
from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import ask_cluster, end_for_errors, fail, wrapped
from rmqd.cli.confirm import DryRun, Yes, confirm
from rmqd.cli.dlq_choice import kinds_document, kinds_lines, topics_text
from rmqd.cli.progress import Progress
from rmqd.cli.render import count, say, say_json
from rmqd.exit_codes import ExitCode

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.consumer.dead_letters.choice import Choice
    from rmqd.consumer.dead_letters.marks import Marks
    from rmqd.consumer.dead_letters.plan import Plan
    from rmqd.errors import RmqdError

HELP = """\
Brokers cannot delete single messages. Purged letters are marked as settled: `rmqd dlq list`, `show` and `replay` omit
them from then on. They stay stored until the brokers delete them by age (fileReservedTime, 72 hours by default).
mqadmin and dashboards still count them, and `rmqd dlq show --all` shows them. Marks are stored below state_dir. Up to
the first letter that is left they are also stored as the group's offset in its %DLQ% topic, for rmqd on other machines.
The command shows a plan and asks for confirmation. A mark cannot be removed.

Example: rmqd dlq purge order-mailer --until 2026-11-01T00:00:00Z --reason "no such order"
"""


@against_cluster
@dlq_choice.choosing
def purge(
    asked: Asked,
    choice: Choice,
    group: dlq_choice.GroupName,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Settle a group's dead letters without handling them."""
    target = asked.target(group)
    namespace = target.options.namespace
    name = wrapped(group, namespace)
    marks = dlq_choice.unread_marks(target, name)
    plan, unasked = ask_cluster(target.options, lambda client: _plan(client, name, marks, choice, to_write=not dry_run))
    purged, errors = 0, dict[str, "RmqdError"]()
    if dry_run and asked.as_json:
        say_json(_document(group, namespace, plan, purged))
    if plan.chosen:
        confirm(_plan_lines(group, namespace, plan), yes=yes, dry_run=dry_run, err=asked.as_json)
        progress = Progress(plan.chosen, "settled")
        try:
            purged, errors = ask_cluster(target.options, lambda client: _purge(client, plan, marks, choice, progress))
        except KeyboardInterrupt:
            done = f"{progress.done} of {plan.chosen} settled"
            fail(ExitCode.INTERRUPTED, f"rmqd: interrupted; {done}; run the same command to continue")
    if not asked.as_json:
        say([f"{purged} settled; {max(0, plan.left - purged)} left"])
    elif not dry_run:
        say_json(_document(group, namespace, plan, purged))
    end_for_errors({**unasked, **errors}, [namespace])


def _plan_lines(group: str, namespace: str, plan: Plan) -> list[str]:
    from rmqd.wire.namespace import without_namespace

    lines = [
        f"{group}: {plan.chosen} of {count(plan.left, 'dead letter')} left: to be settled without being handled again",
        *kinds_lines(plan.reasons),
        f"of the topics: {topics_text(plan.topics)}",
        "brokers keep them until they expire; rmqd will no longer count, show or replay them",
    ]
    return without_namespace(lines, namespace)


def _document(group: str, namespace: str, plan: Plan, purged: int) -> dict[str, Any]:
    from rmqd.wire.namespace import without_namespace

    document = {
        "group": group,
        "chosen": plan.chosen,
        "purged": purged,
        "left": max(0, plan.left - purged),
        "reasons": kinds_document(plan.reasons),
        "topics": dict(plan.topics),
    }
    return without_namespace(document, namespace)


async def _plan(
    client: ClientInstance, group: str, marks: Marks, choice: Choice, *, to_write: bool
) -> tuple[Plan, dict[str, RmqdError]]:
    from rmqd.consumer.dead_letters.plan import make_plan

    brokers = await dlq_choice.read_marks(client, group, marks, to_write=to_write)
    return await make_plan(brokers, group, marks, choice)


async def _purge(
    client: ClientInstance, plan: Plan, marks: Marks, choice: Choice, progress: Progress
) -> tuple[int, dict[str, RmqdError]]:
    from rmqd.consumer.dead_letters.settling import purge
    from rmqd.errors import RmqdError

    purged, errors = 0, dict[str, RmqdError]()
    with progress:
        for queue in plan.queues:
            try:
                async for some in purge(client, queue, marks, choice):
                    purged += some
                    progress.tell(purged)
            except RmqdError as error:
                errors[queue.queue.broker_name] = error
    return purged, errors
