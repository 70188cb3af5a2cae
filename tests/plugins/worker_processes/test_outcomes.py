"""The outcome of a batch is the same if its handler is called in a worker process instead of the daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rmqd.consumer.handling.handler_failures import default_decision, requested_suspension_seconds
from rmqd.consumer.handling.in_place_retries import dead_letter_by_name, has_class_name
from rmqd.handler_api.batch import Batch, LoadedHandler, ManualCommitBatch
from rmqd.plugins.handler_catalogue import load_handler
from rmqd.runtime.own_threads import call_sync_or_async
from rmqd.runtime.plain_text import describe, text_of, traceback_of, traceback_tail
from rmqd.testing import make_batch, make_message
from tests.plugins.worker_processes.pools import GROUP, group_config, pooled
from tests.plugins.worker_processes.scripted_handler import ASYNC, SYNC

pytestmark = pytest.mark.process

# lines that a batch of two messages runs, one line for each message
PLAIN = (
    ("pass", "pass"),
    ("batch.ack(message)", "raise ValueError('bad')"),
    ("batch.retry(message)", "batch.retry(message, delay_level=7)"),
    ("batch.retry(message, -1)", "batch.dead_letter(message, ValueError('text of it'))"),
    ("batch.dead_letter(message, 'no such order')", "pass"),
    ("batch.ack_index = 0", "pass"),
    ("batch.ack_index = -1", "raise KeyError('k')"),
    ("raise Retry", "pass"),
    ("raise Retry(4)", "pass"),
    ("raise OwnRetry", "pass"),
    ("raise DeadLetter('a reason')", "pass"),
    ("batch.ack(message)", "raise DeadLetter(ValueError('w'))"),
    ("raise Suspend(2.5)", "pass"),
    ("raise AlreadyHandled(message)", "pass"),
    ("raise AlreadyHandled('order 7')", "pass"),
    ("raise OwnError(3)", "pass"),
    ("error = OwnError(3); error.rmqd_wait_seconds = 2; raise error", "pass"),
    ("raise DeeperError(4)", "pass"),
    ("raise SystemExit(3)", "pass"),
    ("raise ExceptionGroup('several', [ValueError(1)])", "pass"),
    ("raise ExceptionGroup('several', [ExceptionGroup('x', [DeadLetter('why')]), OwnError(3)])", "pass"),
    ("raise ExceptionGroup('several', [Retry(3), Suspend(2.5)])", "pass"),
    ("raise ExceptionGroup('several', [AlreadyHandled(message)])", "pass"),
    ("raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'bad')", "pass"),
    ("raise ValueError('outer') from OwnError(3)", "pass"),
)
ORDERLY = (*PLAIN, ("batch.wait_behind(message)", "pass"), ("assert batch.revoked is False", "1 / 0"))
MANUAL = (
    *ORDERLY,
    ("batch.commit()", "pass"),
    ("batch.rollback()", "pass"),
    ("batch.commit()", "raise ValueError('behind it')"),
)
MODES: tuple[tuple[Mapping[str, Any], tuple[tuple[str, str], ...]], ...] = (
    ({}, PLAIN),
    ({"consume_mode": "orderly"}, ORDERLY),
    ({"consume_mode": "orderly", "auto_commit": False}, MANUAL),
)
NAMES = (
    "ValueError",
    "LookupError",
    "TypeError",
    "OwnError",
    "tests.OwnError",
    "Retry",
    "rmqd.Retry",
    "Exception",
    "BaseException",
)


def batch_of(lines: tuple[str, ...], mode: Mapping[str, Any], *, as_json: bool = False) -> Batch:
    messages = [
        make_message(json.dumps({"line": line}) if as_json else line, msg_id=f"m{i}", queue_offset=i)
        for i, line in enumerate(lines)
    ]
    return make_batch(*messages, **mode)


async def called(handler: LoadedHandler, batch: Batch) -> dict[str, Any]:
    """Call the handler. Returns everything that the engine sees of the call."""
    error: BaseException | None = None
    try:
        await (handler.handle(batch) if handler.is_async else call_sync_or_async(lambda: handler.handle(batch)))
    except BaseException as raised:  # noqa: BLE001  whatever a handler raises
        error = raised
    told = {
        "decided": {index: seen_decision(one) for index, one in batch.decisions().items()},
        "error": seen_error(error),
        "rest": seen_decision(default_decision(error, batch)),
        "rest seconds": requested_suspension_seconds(error),
        "about": getattr(error, "message", None) is batch[0],
        "closing": batch.closing if isinstance(batch, ManualCommitBatch) else None,
    }
    dead_letter_by_name(batch, error, {"OwnError", "KeyError"})
    return told | {"given up": {index: seen_decision(one) for index, one in batch.decisions().items()}}


def seen_decision(decision: Any) -> tuple[Any, ...]:
    return decision.outcome, decision.delay_level, decision.reason, seen_error(decision.error)


def seen_error(error: BaseException | None) -> tuple[Any, ...] | None:
    if error is None:
        return None
    lines = [line.strip() for line in traceback_of(error).splitlines()]
    assert traceback_tail(error, 3, 200)[-1].strip() == lines[-1]
    own = [line for line in lines if "scripted_handler" in line or "Error" in line]
    names = [name for name in NAMES if has_class_name(error, {name})]
    return (
        type(error).__name__,
        text_of(error),
        text_of(error, repr),
        describe(error),
        isinstance(error, Exception),
        names,
        own,
    )


@pytest.mark.parametrize("plugin", [SYNC, ASYNC])
async def test_the_engine_sees_the_same_outcome_from_a_worker_process(plugin: str) -> None:
    here = load_handler(GROUP, group_config(plugin))
    async with pooled(plugin) as there:
        for mode, rows in MODES:
            for lines in rows:
                expected = await called(here, batch_of(lines, mode))
                assert await called(there, batch_of(lines, mode)) == expected, lines
