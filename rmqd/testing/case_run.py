"""Reads test cases from YAML and runs them. A case has messages for a handler, and each message's expected outcome.

A file has a `group` (the keys of a group, or the name of a configured group) and `cases` by name. Errors give file,
line and key.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from rmqd.config.load import ConfigData
from rmqd.config.model.forms import ConfigSection, problems_of_error, setting
from rmqd.config.problems import ConfigProblem, one_line
from rmqd.config.reading.config_source import find_config, read_file, read_source
from rmqd.config.reading.yaml_tree import Node, Scalar, YamlEntry, YamlMapping, merge_nodes
from rmqd.consumer.handling.send_back import RMQD_REASON
from rmqd.errors import ConfigError, RmqdError
from rmqd.plugins.entry_points import import_attribute, why
from rmqd.plugins.option_form import PluginFaultError
from rmqd.runtime.value_kinds import Duration, Integer, Text, ValueKind, show_value, value_error
from rmqd.testing.chaos.chaos_report import NotRepeatableError
from rmqd.testing.chaos.chaos_search import Chaos, ChaosSeesLessWarning
from rmqd.testing.handler_run import Attempt, RunResult
from rmqd.testing.message_factory import as_bytes
from rmqd.testing.rocketmq import RocketMQ
from rmqd.testing.test_group import GroupToRun, check_group

CASES_FILE_SUFFIX: Final = ".cases.yaml"
_GROUP_FORM: Final = "a mapping of the group's keys, or the name of a group of the configuration"


class BodyForm(ValueKind):
    """The key `body` of a message: text, a mapping or a list. `check` returns it as bytes."""

    def parse(self, value: object) -> bytes:
        if isinstance(value, str | dict | list):
            return as_bytes(value)
        quote = ", in quotes" if isinstance(value, int | float) else ""
        raise value_error(
            f"{show_value(value)} is not a body", f"text{quote}, or a mapping or a list, which is sent as JSON"
        )


class NameForm(ValueKind):
    """The name of a message in the key `expect`: the message's keys, or its number."""

    def parse(self, value: object) -> str:
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value)
        raise value_error(
            f"{show_value(value)} is not the name of a message", "a message's keys, or its number, counted from 1"
        )


class DeadLettersForm(ValueKind):
    """Expected dead letters: a mapping of messages to a part of the reason, or a list of messages with any reason."""

    def parse(self, value: object) -> dict[str, str]:
        if isinstance(value, list):
            return {NameForm().parse(name): "" for name in value}
        if isinstance(value, dict) and all(isinstance(reason, str) for reason in value.values()):
            return dict(value)
        raise value_error(
            f"{show_value(value)} is not valid", "a list of messages, or a mapping of messages to their reasons"
        )


class MessageCase(ConfigSection):
    """One message to send."""

    body: Annotated[bytes, BodyForm()] = Field(description="text, or a mapping or a list, which is sent as JSON")
    topic: Annotated[str, Text()] = setting("", "topic; default: the group's first topic")
    keys: Annotated[str, Text()] = setting("", "keys, and the message's name in expect")
    tags: Annotated[str, Text()] = setting("", "its tag")
    properties: dict[str, Annotated[str, Text()]] = Field(default_factory=dict, description="user properties")
    delay_level: Annotated[int, Integer(0, 18)] = setting(0, "RocketMQ's delay level")
    queue_id: Annotated[int, Integer(0, 63)] = setting(0, "the queue of the topic")


class Expectation(ConfigSection):
    """The expected outcomes of the messages. An outcome that is left out must not occur."""

    acked: list[Annotated[str, NameForm()]] = Field(default_factory=list, description="acknowledged messages")
    retried: dict[str, Annotated[int, Integer(1)]] = Field(
        default_factory=dict, description="retried messages, with their numbers of retries"
    )
    dead_letters: Annotated[dict[str, str], DeadLettersForm()] = Field(
        default_factory=dict, validate_default=False, description="dead-lettered messages, with a part of the reason"
    )


class CaseConfig(ConfigSection):
    group: Any = Field(default=None, description="keys of the group that differ in this case")
    messages: list[MessageCase] = Field(description="the messages to send, in order")
    expect: Expectation = Field(description="a mapping with the keys acked, retried, dead_letters")
    timeout: Annotated[float, Duration("1ms")] = setting("30s", "a duration: limit of the case in real time")


class CasesConfig(ConfigSection):
    config: Annotated[str, Text()] = setting("", "the configuration of the group, relative to this file's folder")
    group: Any = Field(description=_GROUP_FORM)
    state: Annotated[str, Text()] = setting(
        "", "for --chaos: a function module:name that returns the state that the handler changes"
    )
    reset: Annotated[str, Text()] = setting("", "for --chaos: a function module:name that restores that state")
    cases: dict[str, CaseConfig] = Field(description="a mapping of names to cases")


@dataclass(frozen=True, slots=True)
class Case:
    """One case to run. `place` is `FILE:LINE:COLUMN`."""

    file: Path
    name: str
    place: str
    group: GroupToRun
    messages: Sequence[MessageCase]
    expect: Expectation
    timeout_seconds: float
    chaos: Chaos

    def label(self, index: int) -> str:
        """Return the name of the message at an index: its keys, or its number from 1 if it has no keys."""
        return self.messages[index].keys or str(index + 1)

    def labels(self) -> list[str]:
        return [self.label(index) for index in range(len(self.messages))]

    def label_of(self, name: str) -> str | None:
        """Return the label of the message with these keys or this number; None if there is no such message."""
        if name in self.labels():
            return name
        number = int(name) if name.isascii() and name.isdecimal() else 0
        return self.label(number - 1) if 0 < number <= len(self.messages) else None


def find_case_files(path: Path) -> list[Path]:
    """Return `path` if it is a file, else all `*.cases.yaml` below it, except in hidden folders and virtualenvs."""
    if path.is_file():
        return [path]
    found = []
    for folder, inner, files in os.walk(path):
        inner[:] = sorted(
            name for name in inner if not name.startswith(".") and not Path(folder, name, "pyvenv.cfg").exists()
        )
        found += [Path(folder, name) for name in sorted(files) if name.endswith(CASES_FILE_SUFFIX)]
    return found


def read_cases(file: Path, config: Path | None = None) -> list[Case]:
    """Read the cases of a file, and import the handler. `config` is used if the file does not name a configuration.

    A handler's module next to the file can be imported without installation. Raises ConfigError with all problems.
    """
    folder = str(file.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    source = read_file(file)
    data = ConfigData(source, os.environ)
    problems: list[object] = [*source.problems, *data.problems]
    if problems:
        raise ConfigError(problems)
    try:
        model = CasesConfig.model_validate(data.values)
    except ValidationError as error:
        raise ConfigError([problem for _, problem, _ in problems_of_error(error, CasesConfig, data.places)]) from None
    name, base = _base(file, model, source.tree.entries["group"].node, config)
    chaos = Chaos(*(_function(model, data, key) for key in ("state", "reset")))
    cases: list[Case] = []
    written = source.tree.entries["cases"].node
    assert isinstance(written, YamlMapping)
    if not written.entries:
        problems.append(ConfigProblem(written.place, ("cases",), "empty; expected one or more cases by name"))
    for case_name, entry in written.entries.items():
        case = model.cases[case_name]
        node = entry.node
        own = node.entries["group"].node if isinstance(node, YamlMapping) and "group" in node.entries else None
        try:
            group = GroupToRun(name, check_group(name, base if own is None else merge_nodes(base, own)))
            _check_module(file, group)
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
            continue
        one = Case(file, case_name, entry.place, group, case.messages, case.expect, case.timeout, chaos)
        problems += _name_problems(one, data)
        cases.append(one)
    if problems:
        raise ConfigError(problems)
    return cases


def _base(file: Path, model: CasesConfig, node: Node, config: Path | None) -> tuple[str, Node]:
    """Return the group's name and section: from the file, or from the configuration that the file names."""
    if isinstance(node, YamlMapping):
        return re.sub(r"[^\w-]", "-", file.name.removesuffix(CASES_FILE_SUFFIX), flags=re.ASCII), node
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise ConfigError(
            [ConfigProblem(node.place, ("group",), f"{show_value(model.group)} is not a group; expected {_GROUP_FORM}")]
        )
    try:
        path = file.parent / model.config if model.config else find_config(config)
    except ConfigError as error:
        raise ConfigError([ConfigProblem(node.place, ("group",), str(error))]) from None
    source = read_source(path)
    if source.problems:
        raise ConfigError(list(source.problems))
    groups = source.tree.entries.get("groups", YamlEntry("", Scalar("", None))).node
    known = groups.entries if isinstance(groups, YamlMapping) else {}
    if node.value not in known:
        expected = ", ".join(known) or "none"
        message = f"{path} has no group {node.value!r}; expected one of {expected}"
        raise ConfigError([ConfigProblem(node.place, ("group",), message)])
    return node.value, known[node.value].node


def _function(model: CasesConfig, data: ConfigData, key: str) -> Callable[[], object] | None:
    """Return the function that the key `state` or `reset` names; None if the key is not set. Raises ConfigError."""
    name: str = getattr(model, key)
    if not name:
        return None
    try:
        found = import_attribute(name)
    except PluginFaultError as error:
        place = data.places.of_key((key,))
        raise ConfigError([ConfigProblem(place, (key,), fault.message) for fault in error.faults]) from None
    if not callable(found):
        message = f"{name} is {show_value(found)}; expected a function without arguments"
        raise ConfigError([ConfigProblem(data.places.of_key((key,)), (key,), message)])
    function: Callable[[], object] = found
    return function


def _check_module(file: Path, group: GroupToRun) -> None:
    """Raise ConfigError if a module next to the cases file is hidden by an imported module of the same name."""
    module = group.package
    beside, loaded = file.parent / f"{module}.py", getattr(sys.modules.get(module), "__file__", None)
    if module and loaded and beside.exists() and not beside.samefile(loaded):
        message = f"the module {module} was loaded from {loaded}, and not from {beside}; rename one of them"
        raise ConfigError([group.settings.problem(group.name, ("handler", "plugin"), message)])


def _name_problems(case: Case, data: ConfigData) -> Iterator[ConfigProblem]:
    path = ("cases", case.name, "expect")
    for key in ("acked", "retried", "dead_letters"):
        for index, name in enumerate(getattr(case.expect, key)):
            if case.label_of(name) is None:
                inner = (*path, key, index if (*path, key, index) in data.places.keys else name)
                expected = ", ".join(dict.fromkeys(case.labels())) or "none, because none is sent"
                message = f"no message is called {name!r}; expected {expected}, or a number counted from 1"
                yield ConfigProblem(data.places.of_key(inner), inner, message)


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """How often the messages with a label were acknowledged and retried, and the reasons of their dead letters."""

    acked: int
    retried: int
    reasons: tuple[str, ...]
    last_error: BaseException | None
    dropped: int = 0
    """How often a broadcasting group dropped the messages."""

    def __str__(self) -> str:
        parts = [f"retried{_times(self.retried)}"] if self.retried else []
        parts += [f"acked{_times(self.acked)}"] if self.acked else []
        parts += [f"dropped{_times(self.dropped)}"] if self.dropped else []
        parts += [f"dead-lettered: {one_line(reason)}" if reason else "dead-lettered" for reason in self.reasons]
        return ", ".join(parts) or "never handed to the handler"


@dataclass(frozen=True, slots=True)
class CaseReport:
    """The result of a case. `problems` are lines of text; empty if all outcomes were as expected."""

    case: Case
    problems: tuple[str, ...]
    fates: dict[str, CaseOutcome]
    attempts: int
    elapsed_seconds: float
    """The duration of the case by the broker's clock, which jumps over waits."""
    notes: tuple[str, ...] = ()
    """The texts of ChaosSeesLessWarning: limits of the chaos check."""


def run_case(case: Case, *, in_chaos: bool = False, kills: bool = False) -> CaseReport:
    """Run a case on its own broker. An error of the handler's constructor or `start` is a problem in the report.

    With `in_chaos`, also check that the handler's effect is repeatable. With `kills`, this check also kills the
    handler's process. Problems of the check are reported if all outcomes are as expected.
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ChaosSeesLessWarning)
        report = _run(case, replace(case.chaos, kills=kills) if in_chaos or kills else None)
    notes = (str(one.message) for one in warned if issubclass(one.category, ChaosSeesLessWarning))
    return replace(report, notes=tuple(notes))


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


def _fates(case: Case, result: RunResult, names: dict[str, str]) -> dict[str, CaseOutcome]:
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
        acked, retried, dropped = outcomes["acked"], outcomes["retried"], outcomes["dropped"]
        fates[name] = CaseOutcome(acked, retried, tuple(reasons[name]), error, dropped)
    return fates


def _problems(case: Case, fates: dict[str, CaseOutcome]) -> Iterator[str]:
    """Yield a line for each message with an unexpected outcome, with the handler's error below it."""
    acked = Counter(case.label_of(name) for name in case.expect.acked)
    retried: Counter[str | None] = Counter()
    for name, times in case.expect.retried.items():
        retried[case.label_of(name)] += times
    dead = {case.label_of(name): reason for name, reason in case.expect.dead_letters.items()}
    for name, fate in fates.items():
        dead_as_expected = bool(fate.reasons) == (name in dead) and all(dead[name] in reason for reason in fate.reasons)
        if fate.acked == acked[name] and fate.retried == retried[name] and dead_as_expected:
            continue
        expected = CaseOutcome(acked[name], retried[name], (dead[name],) if name in dead else (), None)
        yield f"{name}: expected {expected}"
        yield f"{' ' * len(name)}  got {fate}"
        if fate.last_error is not None:
            yield f"{' ' * len(name)}  its handler raised {one_line(why(fate.last_error))}"


def _times(count: int) -> str:
    return "" if count == 1 else " twice" if count == 2 else f" {count} times"
