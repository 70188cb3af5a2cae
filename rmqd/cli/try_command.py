"""`rmqd try`: runs a group's handler with real messages, without changing the group."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.terminal.cluster_command import ClusterOptions, ConfigGroup
from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import GroupInConfig, duration_ms, moment_or_age_ms
from rmqd.cli.terminal.output import count, say, say_json
from rmqd.errors import ExitCode
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import duration
from rmqd.wire.topics import dlq_topic, wrap_namespace

with import_lazily():
    from rmqd.operate.try_handler import selection as trial_selection
    from rmqd.operate.try_handler import trial as trials

if TYPE_CHECKING:
    from rmqd.wire.messages.message import CorruptMessage, Message

_NOTHING = "what the handler did is real; nothing was committed, sent back or dead-lettered"


@dataclass(slots=True)
class TrialReporter:
    """Prints the outcome of each message when its batch is finished, as a line of text or a line of JSON.

    `stored_topic` is the DLQ topic if the messages are dead letters; otherwise empty.
    """

    as_json: bool
    stored_topic: str = ""
    failures: int = 0
    """The number of failed calls and corrupt messages."""
    _batches: int = 0
    _outcomes: Counter[str] = field(default_factory=Counter)

    def batch(self, report: trials.BatchReport) -> None:
        self._batches += 1
        self.failures += report.result.is_failure
        for message, verdict in zip(report.messages, report.result.verdicts, strict=True):
            self._outcomes[verdict.outcome] += 1
            result = document(message, verdict, report, self.stored_topic) | {"batch": self._batches}
            self._say(result, _decided(verdict, report.result), duration(report.result.seconds))
        if not self.as_json:
            say(f"    {line}" for line in _why(report))

    def corrupt(self, corrupt: CorruptMessage) -> None:
        """Print a corrupt message. The handler is not called with it."""
        self.failures += 1
        self._outcomes["corrupt"] += 1
        result = _place(corrupt.message, self.stored_topic) | {"outcome": "corrupt", "error": corrupt.reason}
        self._say(result, f"corrupt: {corrupt.reason}", "-")

    def end(self, at_end: str | None, *, is_cut: bool = False) -> None:
        """Print how many messages had each outcome. `at_end` is the error of the handler's stop, or None."""
        parts = ", ".join(f"{number} {outcome.replace('_', '-')}" for outcome, number in self._outcomes.most_common())
        lines = [f"error while the handler stopped: {at_end}"] if at_end else []
        lines += ["cut short"] if is_cut else []
        say([*lines, f"{parts or 'no message'}; {_NOTHING}"], err=self.as_json)

    def _say(self, result: dict[str, Any], decided: str, took: str) -> None:
        if self.as_json:
            typer.echo(json.dumps(result))
            return
        place = "{stored_in}:{broker}:{queue}:{offset}".format(**result)
        tags, keys = result["tags"] or "-", result["keys"] or "-"
        say(["  ".join((f"{took:>9}", result["msg_id"], place, tags, keys, decided))])


def document(
    message: Message, verdict: trials.TrialDecision, report: trials.BatchReport, stored_topic: str
) -> dict[str, Any]:
    result = report.result
    return _place(message, stored_topic) | {
        "outcome": verdict.outcome,
        "delay_level": verdict.delay_level,
        "rest_seconds": verdict.rest_seconds,
        "reason": verdict.reason,
        "closing": result.closing,
        "seconds": round(result.seconds, 6),
        "error": result.error,
        "place": result.place,
        "process": report.ended,
    }


def say_finding(finding: trials.BisectResult, name: str, stored_topic: str, *, as_json: bool) -> None:
    """Print the result of a bisection and the next steps. `stored_topic` is the DLQ topic of dead letters, else ""."""
    lines, following = [*_found(finding, stored_topic)], [*_next(finding, name, stored_topic)]
    if as_json:
        say_json(_finding_document(finding, name, stored_topic) | {"answer_text": " ".join(lines), "next": following})
    else:
        say([*lines, *(f"  {line}" for line in following)])


def _finding_document(finding: trials.BisectResult, name: str, stored_topic: str) -> dict[str, Any]:
    report, message = finding.report, finding.message
    verdicts = {} if report is None else dict(zip(map(id, report.messages), report.result.verdicts, strict=True))
    return {
        "group": name,
        "answer": finding.answer,
        "kind": finding.kind,
        "runs": finding.runs,
        "messages": finding.messages,
        "message": None
        if message is None or report is None
        else document(message, verdicts[id(message)], report, stored_topic),
        "together": [_place(one, stored_topic) for one in finding.together],
        "others_fail": finding.others_fail,
        "error": None if report is None else report.result.error,
        "place": None if report is None else report.result.place,
    }


def _found(finding: trials.BisectResult, stored_topic: str) -> list[str]:
    runs = count(finding.runs, "run")
    if finding.answer == "nothing_fails":
        return [f"nothing fails: the handler got {count(finding.messages, 'message')} and raised nothing ({runs})"]
    report, together = finding.report, finding.together
    assert report is not None
    why = _why(report)
    if finding.message is not None:
        alone = f"found in {runs}: handled alone, this message fails"
        lines = [alone, _line_of_place(finding.message, stored_topic), *why]
        if finding.others_fail:
            lines.append("the others fail without it as well: there is at least one more")
        elif finding.others_fail is False:
            lines.append(f"the other {finding.messages - 1} do not fail without it")
        return [*lines, *_raised(finding)]
    if finding.answer == "not_again":
        return [f"the messages alone are not the cause: the first run's failure did not occur again ({runs})", *why]
    first, last = together[0], together[-1]
    lines = [f"no single message is the cause: {len(together)} fail together, those tried alone do not ({runs})", *why]
    lines += [
        f"the first of them: {_line_of_place(first, stored_topic)}",
        f"the last of them: {_line_of_place(last, stored_topic)}",
    ]
    return [*lines, *_raised(finding)]


def _raised(finding: trials.BisectResult) -> list[str]:
    if not finding.raised:
        return []
    return [f"also, {count(finding.raised, 'call')} raised an exception in the first run: `rmqd try` shows which"]


def _next(finding: trials.BisectResult, name: str, stored_topic: str) -> list[str]:
    if finding.message is None or finding.report is None:
        return []
    message, msg_id = finding.message, finding.message.msg_id
    again = f"rmqd try {name} --dead-letters" if stored_topic else f"rmqd try {name}"
    lines = [f"rmqd message get {msg_id}", f"{again} --id {msg_id}"]
    if finding.others_fail is not False:
        lines.append(f"{again} --bisect --without {msg_id}")
    if message.topic == message.message_queue.topic:  # a retry's or dead letter's offset is not from the original topic
        queue = f"--broker {message.broker_name} --queue {message.queue_id} --to {message.queue_offset + 1}"
        lines.append(
            f"rmqd offsets reset {name} {message.topic} {queue}  # if the group is stuck at this message: skips it"
        )
    place = finding.report.result.place
    where = f" at {place}" if place else ""
    lines.append(f"fix the handler{where}, or let it raise DeadLetter for such messages")
    return lines


def _decided(verdict: trials.TrialDecision, result: trials.CallResult) -> str:
    match verdict.outcome:
        case "retried" if verdict.rest_seconds is not None:
            text = f"again in place after {duration(verdict.rest_seconds)}"
        case "retried":
            text = f"retry at delay level {verdict.delay_level}"
        case "dead_lettered":
            text = f"dead letter: {verdict.reason}" if verdict.reason else "dead letter"
        case "dropped":
            text = f"dropped: {verdict.reason}"
        case other:
            text = other
    return f"{text}, {result.closing}" if result.closing else text


def _why(report: trials.BatchReport) -> list[str]:
    result = report.result
    if result.error is None:
        return []
    return [result.error + (f", at {result.place}" if result.place else "")]


def _place(message: Message, stored_topic: str) -> dict[str, Any]:
    return {
        "msg_id": message.msg_id,
        "topic": message.topic,
        "stored_in": stored_topic or message.message_queue.topic,  # for a retry, the retry topic
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "keys": message.keys,
        "tags": message.tags,
    }


def _line_of_place(message: Message, stored_topic: str) -> str:
    keys = f", keys {message.keys}" if message.keys else ""
    place = "{msg_id}, {stored_in}, {broker}, queue {queue}, offset {offset}"
    return place.format(**_place(message, stored_topic)) + keys


MAX_RUNS = 16


def try_group(
    cluster: ClusterOptions,
    group: GroupInConfig,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Number of newest messages")] = None,
    since: Annotated[str | None, typer.Option("--from", help="Stored at or after this time")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Stored before this time")] = None,
    keys: Annotated[list[str] | None, typer.Option("--key", help="Only messages with this key; repeatable")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Only the message with this id; repeatable")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only uncommitted messages and retries")] = False,
    topics: Annotated[list[str] | None, typer.Option("--topic", help="Only messages of this topic; repeatable")] = None,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="The group's dead letters, as if they were sent again")
    ] = False,
    without: Annotated[list[str] | None, typer.Option("--without", help="Exclude this message id; repeatable")] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Limit; the oldest selected messages are used")] = 10_000,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Timeout of one call, as 30s; default: the group's consume_timeout")
    ] = None,
    canary: Annotated[bool, typer.Option("--canary", help="Run the group's canary instead of its handler")] = False,
    bisect: Annotated[bool, typer.Option("--bisect", help="Find the message that makes the handler fail")] = False,
) -> None:
    """Run a group's handler on real messages, and print the outcome of each.

    The effects of the handler are REAL: mails are sent, rows are written. The group is not affected: it is not joined,
    no offset is committed, no message is sent back or dead-lettered. The handler gets one batch after the other, as
    large as in the daemon, in its own process. If that exits, crashes or hangs, it is reported, and a new process
    continues.

    The messages match the group's subscriptions: by default the newest 10. Times are ISO 8601 with a zone,
    @milliseconds, or an age (10m).

    --bisect finds the one message on which the handler's process dies, hangs, or raises an exception, in at most 16
    runs for 10,000 messages. By default it searches the messages that the group has not committed.

    It exits with 1 if the handler raised an exception, died or hung; with --bisect, if no single message is the cause.

    Example: rmqd try order-mailer --from 2h --to 1h

    Example: rmqd try order-mailer --bisect --timeout 30s
    """
    times = [moment_or_age_ms(text, name) if text else None for text, name in ((since, "--from"), (until, "--to"))]
    if times[0] is not None and times[1] is not None and times[1] <= times[0]:
        raise typer.BadParameter("is not after --from", param_hint="--to")
    ours = ConfigGroup.find(cluster, group, canary=canary)
    if not any((last, since, until, keys, ids, waiting)) and not dead_letters:
        last, waiting = (None, True) if bisect else (10, False)
    selection = trial_selection.TrialSelection(
        tuple(ids or ()), tuple(keys or ()), times[0], times[1], last, waiting and not dead_letters,
        _topics(ours, topics), dead_letters, frozenset(without or ()), most,
    )  # fmt: skip
    longest = ours.options.consume_timeout_seconds if timeout is None else _timeout_seconds(timeout)
    chosen = ours.target.ask(lambda client: trial_selection.TrialMessageReader(client, ours.options, selection).read())
    say((f"rmqd: {remark}" for remark in chosen.remarks), err=True)
    if chosen.is_cut:
        say([f"rmqd: only the first {most} are used; use --most for more, or --from to begin later"], err=True)
    if not chosen.messages and not chosen.corrupt:
        hint = (
            "; name a message that waits for its next attempt by --id (`rmqd diagnose` and handler.failed have its id)"
        )
        fail(ExitCode.FAILURE, f"rmqd: {group} has no such messages{hint if selection.waiting else ''}")
    reporter = TrialReporter(cluster.as_json, dlq_topic(ours.name) if chosen.are_dead_letters else "")
    trial = trials.HandlerTrial(ours.config, longest)
    raise typer.Exit((_bisect if bisect else _try)(ours, chosen, trial, reporter))


def _try(
    ours: ConfigGroup, chosen: trial_selection.ChosenMessages, trial: trials.HandlerTrial, reporter: TrialReporter
) -> int:
    import asyncio

    async def run() -> None:
        batches = trial_selection.make_batches(chosen.messages, ours.options.consume_message_batch_max_size)
        async with aclosing(trial.run(batches)) as reports:
            async for report in reports:
                reporter.batch(report)

    for one in chosen.corrupt:
        reporter.corrupt(one)
    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        reporter.end(None, is_cut=True)
        return ExitCode.INTERRUPTED
    reporter.end(trial.at_end)
    return ExitCode.FAILURE if reporter.failures or trial.at_end else ExitCode.OK


def _bisect(
    ours: ConfigGroup, chosen: trial_selection.ChosenMessages, trial: trials.HandlerTrial, reporter: TrialReporter
) -> int:
    import asyncio

    size = ours.options.consume_message_batch_max_size
    search = trials.Bisection(trial, size, MAX_RUNS, lambda line: say([line], err=True))
    messages = count(len(chosen.messages), "message")
    say([f"{messages} in batches of up to {size}; the handler's effects are real"], err=True)
    try:
        finding = asyncio.run(search.find(chosen.messages))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    say_finding(finding, ours.name, reporter.stored_topic, as_json=reporter.as_json)
    return ExitCode.OK if finding.answer in ("found", "nothing_fails") else ExitCode.FAILURE


def _topics(ours: ConfigGroup, topics: list[str] | None) -> tuple[str, ...]:
    known = ours.options.subscriptions
    named = [wrap_namespace(topic, ours.options.namespace) for topic in topics or ()]
    for given, topic in zip(topics or (), named, strict=True):
        if topic not in known:
            expected = ", ".join(ours.settings.subscriptions)
            raise typer.BadParameter(
                f"{ours.name} does not subscribe to {given}; expected one of {expected}", param_hint="--topic"
            )
    return tuple(named)


def _timeout_seconds(timeout: str) -> float:
    chosen = duration_ms(timeout, "--timeout") / 1000
    if chosen <= 0:
        raise typer.BadParameter("expected more than 0s", param_hint="--timeout")
    return chosen
