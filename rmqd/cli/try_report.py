"""The output of `rmqd try` about each message, and about the result of a bisection."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from rmqd.cli.render import count, say, say_json

if TYPE_CHECKING:
    from rmqd.trying.bisect import Finding
    from rmqd.trying.order import CallResult, Verdict
    from rmqd.trying.trial import BatchReport
    from rmqd.wire.messages.message import CorruptMessage, Message

_NOTHING = "nothing was committed, sent back or dead-lettered"


class Reporter:
    """Prints a line for each message when its batch is finished: a table, or one JSON document per line."""

    def __init__(self, *, as_json: bool, lie_in: str = "") -> None:
        """`lie_in` is the topic that stores the messages, if that differs from their original topic."""
        self._as_json = as_json
        self._lie_in = lie_in
        self._batches = 0
        self._outcomes: Counter[str] = Counter()
        self.failures = 0
        """The number of failed calls and corrupt messages."""

    def batch(self, report: BatchReport) -> None:
        """Print the outcome of a batch."""
        self._batches += 1
        self.failures += report.result.is_failure
        for message, verdict in zip(report.messages, report.result.verdicts, strict=True):
            self._outcomes[verdict.outcome] += 1
            if self._as_json:
                _say_document(document(message, verdict, report, self._lie_in) | {"batch": self._batches})
            else:
                self._say_line(message, _decided(verdict, report.result), f"{report.result.seconds:.3f} s")
        if not self._as_json:
            say(f"    {line}" for line in _why(report))

    def corrupt(self, corrupt: CorruptMessage) -> None:
        """Print a corrupt message, which the handler does not get."""
        self.failures += 1
        self._outcomes["corrupt"] += 1
        message = corrupt.message
        if self._as_json:
            _say_document(_place(message, self._lie_in) | {"outcome": "corrupt", "error": corrupt.reason})
        else:
            self._say_line(message, f"corrupt: {corrupt.reason}", "-")

    def end(self, at_end: str | None, *, is_cut: bool = False) -> None:
        """Print the totals. `at_end` is the error of stopping the handler."""
        parts = ", ".join(f"{number} {outcome.replace('_', '-')}" for outcome, number in self._outcomes.most_common())
        lines = [f"error while the handler stopped: {at_end}"] if at_end else []
        lines += ["cut short"] if is_cut else []
        say([*lines, f"{parts or 'no message'}; {_NOTHING}"], err=self._as_json)

    def _say_line(self, message: Message, decided: str, took: str) -> None:
        place = f"{_stored_in(message, self._lie_in)}:{message.broker_name}:{message.queue_id}:{message.queue_offset}"
        say(["  ".join((f"{took:>9}", message.msg_id, place, message.tags or "-", message.keys or "-", decided))])


def document(message: Message, verdict: Verdict, report: BatchReport, lie_in: str) -> dict[str, Any]:
    """Return a message and its outcome."""
    result = report.result
    return _place(message, lie_in) | {
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


def say_finding(finding: Finding, name: str, lie_in: str, *, as_json: bool) -> None:
    """Print the result of a bisection, and the next steps. `lie_in` as in `Reporter`."""
    lines, following = [*_found(finding, lie_in)], [*_next(finding, name, lie_in)]
    if as_json:
        say_json(_finding_document(finding, name, lie_in) | {"answer_text": " ".join(lines), "next": following})
        return
    say([*lines, *(f"  {line}" for line in following)])


def _finding_document(finding: Finding, name: str, lie_in: str) -> dict[str, Any]:
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
        else document(message, verdicts[id(message)], report, lie_in),
        "together": [_place(one, lie_in) for one in finding.together],
        "others_fail": finding.others_fail,
        "error": None if report is None else report.result.error,
        "place": None if report is None else report.result.place,
    }


def _found(finding: Finding, lie_in: str) -> list[str]:
    runs = count(finding.runs, "run")
    if finding.answer == "nothing_fails":
        return [f"nothing fails: the handler got {count(finding.messages, 'message')} and raised nothing ({runs})"]
    report, together = finding.report, finding.together
    assert report is not None
    why = _why(report)
    if finding.message is not None:
        alone = f"found in {runs}: handled alone, this message fails"
        lines = [alone, _line_of_place(finding.message, lie_in), *why]
        if finding.others_fail:
            lines.append("the others fail without it as well: there is at least one more")
        elif finding.others_fail is False:
            lines.append(f"the other {finding.messages - 1} do not fail without it")
        return [*lines, *_raised(finding)]
    if finding.answer == "not_again":
        return [f"not only the messages: the failure of the first run did not occur again ({runs})", *why]
    first, last = together[0], together[-1]
    lines = [f"no single message: {len(together)} fail together, but not the ones tried alone ({runs})", *why]
    lines += [
        f"the first of them: {_line_of_place(first, lie_in)}",
        f"the last of them: {_line_of_place(last, lie_in)}",
    ]
    return [*lines, *_raised(finding)]


def _raised(finding: Finding) -> list[str]:
    if not finding.raised:
        return []
    return [f"also, {count(finding.raised, 'call')} raised an exception in the first run: `rmqd try` shows which"]


def _next(finding: Finding, name: str, lie_in: str) -> list[str]:
    if finding.message is None or finding.report is None:
        return []
    message, msg_id = finding.message, finding.message.msg_id
    again = f"rmqd try {name} --dead-letters" if lie_in else f"rmqd try {name}"
    lines = [f"rmqd message get {msg_id}", f"{again} --id {msg_id}"]
    if finding.others_fail is not False:
        lines.append(f"{again} --bisect --without {msg_id}")
    if message.topic == message.message_queue.topic:  # not for retries and dead letters, which have other offsets
        queue = f"--broker {message.broker_name} --queue {message.queue_id} --to {message.queue_offset + 1}"
        lines.append(
            f"rmqd offsets reset {name} {message.topic} {queue}  # if the group is stuck at this message: skips it"
        )
    place = finding.report.result.place
    where = f" at {place}" if place else ""
    lines.append(f"fix the handler{where}, or let it raise DeadLetter for such messages")
    return lines


def _decided(verdict: Verdict, result: CallResult) -> str:
    match verdict.outcome:
        case "retried" if verdict.rest_seconds is not None:
            text = f"again in place after {verdict.rest_seconds:g} s"
        case "retried":
            text = f"retry at delay level {verdict.delay_level}"
        case "dead_lettered":
            text = f"dead letter: {verdict.reason}" if verdict.reason else "dead letter"
        case "dropped":
            text = f"dropped: {verdict.reason}"
        case other:
            text = other
    return f"{text}, {result.closing}" if result.closing else text


def _why(report: BatchReport) -> list[str]:
    result = report.result
    if result.error is None:
        return []
    return [result.error + (f", at {result.place}" if result.place else "")]


def _stored_in(message: Message, lie_in: str) -> str:
    """Return the topic of the message's offset, which for a retry or dead letter is not the handler's topic."""
    return lie_in or message.message_queue.topic


def _place(message: Message, lie_in: str) -> dict[str, Any]:
    return {
        "msg_id": message.msg_id,
        "topic": message.topic,
        "stored_in": _stored_in(message, lie_in),
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "keys": message.keys,
        "tags": message.tags,
    }


def _line_of_place(message: Message, lie_in: str) -> str:
    keys = f", keys {message.keys}" if message.keys else ""
    return (
        f"{message.msg_id}, {_stored_in(message, lie_in)}, {message.broker_name}, queue {message.queue_id}, "
        f"offset {message.queue_offset}{keys}"
    )


def _say_document(document: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(document))
