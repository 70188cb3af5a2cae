"""Runs cases, and reports messages with unexpected outcomes."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rmqd.config.problems import one_line
from rmqd.consumer.handling.copies import RMQD_REASON
from rmqd.errors import RmqdError
from rmqd.plugins.entry_points import why
from rmqd.testing.case_file import Case
from rmqd.testing.chaos.report import NotRepeatableError
from rmqd.testing.chaos.run import Chaos
from rmqd.testing.chaos.search import ChaosSeesLessWarning
from rmqd.testing.result import Attempt, RunResult
from rmqd.testing.rocketmq import RocketMQ


@dataclass(frozen=True, slots=True)
class Fate:
    """The outcomes of the messages with one name. Reasons are in the order of the dead letters."""

    acked: int
    retried: int
    reasons: tuple[str, ...]
    last_error: BaseException | None

    def __str__(self) -> str:
        parts = [f"retried{_times(self.retried)}"] if self.retried else []
        parts += [f"acked{_times(self.acked)}"] if self.acked else []
        parts += [f"dead-lettered: {one_line(reason)}" if reason else "dead-lettered" for reason in self.reasons]
        return ", ".join(parts) or "never handed to the handler"


@dataclass(frozen=True, slots=True)
class CaseReport:
    """The result of a case. `problems` are lines of text; empty if all outcomes were as expected."""

    case: Case
    problems: tuple[str, ...]
    fates: dict[str, Fate]
    attempts: int
    elapsed_seconds: float
    """The duration of the case by the broker's clock, which jumps over waits."""
    notes: tuple[str, ...] = ()
    """Warnings about the limits of chaos."""


def run_case(case: Case, *, in_chaos: bool = False, kills: bool = False) -> CaseReport:
    """Run a case on its own broker. An error when the handler is created or started is a problem of the case.

    `in_chaos`: if all outcomes are as expected, also check that the handler's effect is repeatable. `kills`: also with
    killed processes.
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ChaosSeesLessWarning)
        report = _run(case, replace(case.chaos, kills=kills) if in_chaos or kills else None)
    told = (str(one.message) for one in warned if issubclass(one.category, ChaosSeesLessWarning))
    return replace(report, notes=tuple(told))


def _run(case: Case, chaos: Chaos | None) -> CaseReport:
    chaos_problems: list[str] = []
    with RocketMQ() as rocketmq:
        topics = list(case.group.settings.subscriptions)
        names: dict[str, str] = {}
        for topic in {*topics, *(message.topic for message in case.messages if message.topic)}:
            ids = [message.queue_id for message in case.messages if (message.topic or topics[0]) == topic]
            rocketmq.create_topic(topic, queues=1 + max(ids, default=0))
        try:
            for index, message in enumerate(case.messages):
                sent = rocketmq.send(
                    message.topic or topics[0],
                    message.body,
                    message.keys,
                    message.tags,
                    message.properties,
                    delay_level=message.delay_level,
                    queue_id=message.queue_id,
                )
                names[sent.msg_id] = case.label(index)
            try:
                if chaos is not None:
                    result = rocketmq.run_group_in_chaos(case.group, chaos, case.timeout_seconds)
                else:
                    result = rocketmq.run_group(case.group, case.timeout_seconds)
            except NotRepeatableError as error:
                result, chaos_problems = error.result, str(error).splitlines()
        except RmqdError as error:
            return CaseReport(case, (str(error),), {}, 0, 0.0)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised by the handler's constructor, start or stop
            return CaseReport(case, (f"the handler could not be run: {why(error)}",), {}, 0, 0.0)
    fates = _fates(case, result, names)
    problems = tuple(_problems(case, fates)) or tuple(chaos_problems)
    return CaseReport(case, problems, fates, len(result.attempts), result.elapsed_seconds)


def _fates(case: Case, result: RunResult, names: dict[str, str]) -> dict[str, Fate]:
    by_name: dict[str, list[Attempt]] = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    for attempt in result.attempts:
        by_name[names.get(attempt.message.msg_id, attempt.message.msg_id)].append(attempt)
    for message in result.dead_letters:
        reasons[names.get(message.msg_id, message.msg_id)].append(message.properties.get(RMQD_REASON, ""))
    fates = {}
    for name in dict.fromkeys([*case.labels(), *by_name]):
        outcomes = Counter(attempt.outcome for attempt in by_name[name])
        error = next((one.error for one in reversed(by_name[name]) if one.error is not None), None)
        fates[name] = Fate(outcomes["acked"], outcomes["retried"], tuple(reasons[name]), error)
    return fates


def _problems(case: Case, fates: dict[str, Fate]) -> Iterator[str]:
    """Yield a line for each message with an unexpected outcome, with the handler's error below it."""
    acked = Counter(case.label_of(name) for name in case.expect.acked)
    retried: Counter[str | None] = Counter()
    for name, times in case.expect.retried.items():
        retried[case.label_of(name)] += times
    dead = {case.label_of(name): reason for name, reason in case.expect.dead_letters.items()}
    for name, fate in fates.items():
        is_dead_as_told = bool(fate.reasons) == (name in dead) and all(dead[name] in reason for reason in fate.reasons)
        if fate.acked == acked[name] and fate.retried == retried[name] and is_dead_as_told:
            continue
        expected = Fate(acked[name], retried[name], (dead[name],) if name in dead else (), None)
        yield f"{name}: expected {expected}"
        yield f"{' ' * len(name)}  got {fate}"
        if fate.last_error is not None:
            yield f"{' ' * len(name)}  its handler raised {one_line(why(fate.last_error))}"


def _times(count: int) -> str:
    return "" if count == 1 else " twice" if count == 2 else f" {count} times"
