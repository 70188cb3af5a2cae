"""One group on Spark in this process, without a daemon: no restarts, no HTTP; its metrics are logged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

# Import first: it keeps structlog from importing rich, see there.
from rmqd.process.logs import logs

# isort: split

import structlog

from rmqd.clock import SystemClock
from rmqd.consumer.stats.snapshot import HANDLED_RESULTS, GroupSnapshot
from rmqd.errors import RmqdError
from rmqd.exit_codes import ExitCode
from rmqd.process.loop import run_in_loop
from rmqd.spark.engine.group_run import GroupRun, failure_of
from rmqd.spark.engine.spark_parts import SparkParts
from rmqd.spark.group_order import GroupOrder
from rmqd.spark.spark_output import catch_output, settle_output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

FIGURES_SECONDS: Final = 10.0


def run_group(
    order: GroupOrder,
    stop: threading.Event,
    on_session: Callable[[SparkSession], None] = lambda session: None,
    hurry: threading.Event | None = None,
) -> int:
    """Run a group until `stop` is set and the drain is over. Return the exit code.

    `hurry` shortens the drain. Both events may be set in any thread, or by a signal handler. `on_session` is called in
    a thread when Spark runs.
    """
    catch_output(order.config.log.format)
    config = order.config
    logs.configure_logging(config.log.level, config.log.format, namespaces=config.namespaces)
    try:
        return run_in_loop(_run(order, stop, on_session, hurry or threading.Event()))
    finally:
        settle_output()


async def _run(
    order: GroupOrder, stop: threading.Event, on_session: Callable[[SparkSession], None], hurry: threading.Event
) -> int:
    clock = SystemClock()
    run = GroupRun(order, SparkParts(order, clock, on_session), clock)
    loop = asyncio.get_running_loop()
    for event, action in ((stop, run.stop), (hurry, run.hurry)):
        _when_set(event, loop, action)
    telling = asyncio.create_task(_tell_figures(run), name="figures")
    try:
        await run.run()
    except Exception as error:
        # an expected error is reported in one line; a bug needs its traceback
        is_fault = not isinstance(error, RmqdError)
        log.error("group.failed", group=order.name, error=failure_of(error), exc_info=is_fault)  # noqa: TRY400
        return ExitCode.FAILURE
    finally:
        telling.cancel()
        await asyncio.wait({telling})
        tell_figures(run.snapshot())
    return ExitCode.OK


def tell_figures(group: GroupSnapshot) -> None:
    """Log the messages handled so far, and the lag."""
    log.info(
        "spark.progress_reported",
        group=group.name,
        state=group.state,
        lag=sum(queue.lag or 0 for queue in group.queues),
        batches=0 if group.batches is None else group.batches.duration.count,
        **{result: sum(topic.handled.get(result, 0) for topic in group.topics) for result in HANDLED_RESULTS},
    )


async def _tell_figures(run: GroupRun) -> None:
    while True:
        await asyncio.sleep(FIGURES_SECONDS)
        logs.repeats.flush()
        tell_figures(run.snapshot())


def _when_set(event: threading.Event, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Call a function in the loop when the event is set. The waiting thread is a daemon, so it delays no exit."""

    def wait() -> None:
        event.wait()
        if not loop.is_closed():
            loop.call_soon_threadsafe(action)

    threading.Thread(target=wait, name="rmqd.spark.wait", daemon=True).start()
