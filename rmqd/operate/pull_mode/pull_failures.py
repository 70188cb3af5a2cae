"""The end of a pull consumer's tasks, and the failures that only an operator can end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from rmqd.consumer.health.causes import explain_failure
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.errors import PullConsumerError, RmqdError
from rmqd.handler_api.batch import leaves_of
from rmqd.operate.pull_mode.pull_settings import Settings
from rmqd.wire.topics import is_retry_topic

_LASTING: Final = frozenset(("topic_missing", "no_permission", "consumption_disabled", "group_unknown"))


def raise_failure(consumer: PushConsumer, tasks: Iterable[asyncio.Task[None]], settings: Settings) -> None:
    """Raise the failure, if any, that withholds messages until an operator acts."""
    raise_end(tasks, settings)
    options, problems = consumer.context.options, [*consumer.context.problems]
    for queue, one in consumer.assigned.items():
        if isinstance(one, AssignedQueue) and one.loop is not None and one.loop.stuck is not None:
            raise PullConsumerError(settings.plain(f"{one.loop.stuck.evidence}; {one.loop.stuck.next}"))
        if (failure := one.failure) is not None and not is_retry_topic(queue.topic):
            problems.append(explain_failure(failure, options.plain_group, queue.without(options.namespace).topic))
    for problem in problems:
        if problem.cause in _LASTING:
            raise PullConsumerError(settings.plain(f"{problem.evidence}; {problem.next}"))
    names = options.group, *options.subscriptions
    if (refusal := consumer.context.client.remoting.security.refusals.about(names)) is not None:
        raise PullConsumerError(settings.plain(refusal))


def raise_end(tasks: Iterable[asyncio.Task[None]], settings: Settings) -> None:
    """Raise the error that ended a task; PullConsumerError if it ended without an error, or with its event loop."""
    for task in tasks:
        if task.done():
            raised = None if task.cancelled() else task.exception()
            error = None if raised is None else leaves_of(raised)[0]
            if isinstance(error, RmqdError):
                error.args = settings.plain(error.args)
            raise error or PullConsumerError("the consumer has ended; create another consumer")


async def ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for the end of tasks. Tasks of an earlier event loop have ended with it, and cannot be awaited."""
    if running := [task for task in tasks if not task.done()]:
        await asyncio.wait(running)
