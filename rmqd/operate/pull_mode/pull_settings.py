"""The settings of a pull consumer, checked by the rules of the configuration file, and the errors that it raises."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar

from rmqd.client.client_options import DEFAULT_INSTANCE, ClientOptions
from rmqd.config.load import ConfigProblems
from rmqd.config.model.forms import keys_of
from rmqd.config.model.root_model import ClientConfig, RootConfig
from rmqd.config.problems import ConfigProblem, most_similar_name, path_text
from rmqd.config.reading.config_source import ConfigFiles
from rmqd.config.reading.yaml_tree import YamlMapping, tree_of
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.health.causes import explain_failure
from rmqd.consumer.health.group_problems import missing_topic_problem
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.errors import (
    BrokerUnknownError,
    ConfigError,
    NameServerError,
    PullConsumerError,
    RemotingError,
    RmqdError,
    RouteNotFoundError,
    SettingError,
)
from rmqd.errors.broker_errors import BrokerError
from rmqd.handler_api.batch import leaf_exceptions
from rmqd.plugins.model_options import consumer_options
from rmqd.wire.bodies.heartbeat_data import filter_mistake
from rmqd.wire.topics import is_retry_topic, without_namespace

STATE_DIR: Final = "~/.rmqd"  # the user who runs the program may not be allowed to write to the daemon's folder
_PLACE: Final = "PullConsumer"
# causes of failures that last until an operator acts; polls raise these failures
_LASTING: Final = frozenset(("topic_missing", "no_permission", "consumption_disabled", "group_unknown"))
_ROOT_KEYS: Final = ("nameserver", "nameserver_url", "state_dir")
_GROUP_KEYS: Final = ("consume_from_where", "consume_timestamp", "message_model", "pull_batch_size")
KEYWORDS: Final = ("auto_commit", *_GROUP_KEYS, *_ROOT_KEYS, *keys_of(ClientConfig))

# Reservations of this process's running consumers, each with the consumer's event loop: the identity of a member with
# an instance name, or a broadcasting consumer's offsets folder. Once the loop is closed, the consumer has ended.
_held: dict[Settings, tuple[object, asyncio.AbstractEventLoop]] = {}
T = TypeVar("T")
Expression = str | Mapping[str, str]
"""A tag expression, or `{"sql": CONDITION}`."""


class Settings:
    """The checked group and keywords of a pull consumer. Raises SettingError, which lists all problems."""

    def __init__(self, group: str, keywords: Mapping[str, Any]) -> None:
        if not isinstance(group, str):
            raise SettingError(f"group: {group!r} is not text; expected the name of a consumer group")
        if unknown := sorted(keywords.keys() - set(KEYWORDS)):
            meant = [one for key in unknown if (one := most_similar_name(key, KEYWORDS))]
            guess = f"; did you mean {', '.join(meant)}?" if meant else ""
            raise SettingError(f"unknown keyword {', '.join(unknown)}; expected one of {', '.join(KEYWORDS)}{guess}")
        given = {key: _literal(value) for key, value in keywords.items() if value is not None}
        self.auto_commit = given.pop("auto_commit", False)
        if not isinstance(self.auto_commit, bool):
            raise SettingError(f"auto_commit: {self.auto_commit!r} is neither True nor False")
        self.group = group
        # the configuration requires a handler for each group; this name is never loaded
        self._section = {"handler": {"plugin": "poll"}} | {key: given.pop(key) for key in _GROUP_KEYS if key in given}
        self._root = {key: given.pop(key) for key in _ROOT_KEYS if key in given} | {"client": given}
        self._root.setdefault("state_dir", str(Path(STATE_DIR).expanduser()))
        self.client: ClientOptions = self._config({"TOPIC": "*"}).client_options()

    def hold(self, options: ConsumerOptions, *, is_assigned: bool) -> None:
        """Reserve the member's name, or the offsets file of a broadcasting consumer, until `release`.

        With `is_assigned`, the consumer is not a member and needs no name. Raises PullConsumerError if another consumer
        of this process has reserved the same name or file.
        """
        one, name = self.client, self.client.instance_name
        if options.message_model == "broadcasting":
            wanted: object = (folder := Path(options.local_offsets_directory, self.group))
            told = f"broadcasts to {self.group}, and both would store their offsets in {folder}; use another state_dir"
        elif not is_assigned and name != DEFAULT_INSTANCE:
            wanted = (one.nameserver_for_output, one.namespace, one.unit_name, name, self.group)
            told = f"is the member {name} of {self.group}, and both would get all queues; use another instance_name"
        else:
            return
        for settings, (_, loop) in list(_held.items()):
            if loop.is_closed():
                settings.release()
        if wanted in (held for settings, (held, _) in _held.items() if settings is not self):
            raise PullConsumerError(f"another consumer of this process {told}")
        _held[self] = wanted, asyncio.get_running_loop()

    def release(self) -> None:
        """Let another consumer of this process use the member's name or the offsets file that `hold` reserved."""
        _held.pop(self, None)

    def as_user_wrote(self, told: T) -> T:
        """Return a text, or texts, with the namespace removed from topic and group names, as the user wrote them."""
        return without_namespace(told, self.client.namespace)

    def options(self, subscriptions: Mapping[str, Expression]) -> ConsumerOptions:
        """Return the options of a consumer with these subscriptions. Raises SettingError if they are invalid."""
        return replace(consumer_options(self._config(subscriptions), self.group), auto_commit=self.auto_commit)

    def check_filters(self, subscriptions: Mapping[str, Expression]) -> None:
        """Issue a Python warning for each filter that probably matches no message. Raises SettingError."""
        for wanted in self.options(subscriptions).subscriptions.values():
            if (mistake := filter_mistake(wanted.expression, wanted.kind)) is not None:
                warnings.warn(mistake, stacklevel=3)

    @contextlib.contextmanager
    def with_next_step(self, topic: str) -> Iterator[None]:
        """Return a context that adds the operator's next step to the text of an error about a topic."""
        try:
            yield
        except (BrokerError, RemotingError, RouteNotFoundError) as error:
            step = explain_failure(error, self.group, topic).next
            if isinstance(error, RemotingError):
                server = "a name server" if isinstance(error, NameServerError) else "the broker"
                at = self.client.nameserver_for_output
                step = f"start {server}, or check the network: `rmqd topics show {topic} --nameserver {at}` tests it"
            elif isinstance(error, RouteNotFoundError) and not isinstance(error, BrokerUnknownError):
                step = missing_topic_problem(topic).next
            error.args = (self.as_user_wrote(f"{error}; {step}"),)
            raise

    def raise_failure(self, consumer: PushConsumer, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Raise RmqdError if a task has ended, or the consumer gets no messages until an operator acts."""
        self.raise_end(tasks)
        context, problems = consumer.context, [*consumer.context.problems]
        for queue, one in consumer.assigned.items():
            if isinstance(one, AssignedQueue) and one.loop is not None and one.loop.stuck is not None:
                raise PullConsumerError(self.as_user_wrote(f"{one.loop.stuck.evidence}; {one.loop.stuck.next}"))
            if (failure := one.failure) is not None and not is_retry_topic(queue.topic):
                problems.append(explain_failure(failure, self.group, queue.without(self.client.namespace).topic))
        for problem in problems:
            if problem.cause in _LASTING:
                raise PullConsumerError(self.as_user_wrote(f"{problem.evidence}; {problem.next}"))
        names = context.options.group, *context.options.subscriptions
        if (refusal := context.client.remoting.security.refusals.reason_for_group(names)) is not None:
            raise PullConsumerError(self.as_user_wrote(refusal))

    def raise_end(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """If a task has ended, raise its error, or PullConsumerError if it ended without an error."""
        for task in tasks:
            if task.done():
                raised = None if task.cancelled() else task.exception()
                error = None if raised is None else leaf_exceptions(raised)[0]
                if isinstance(error, RmqdError):
                    error.args = self.as_user_wrote(error.args)
                raise error or PullConsumerError("the consumer has ended; create another consumer")

    def _config(self, subscriptions: Mapping[str, Expression]) -> RootConfig:
        groups = {self.group: {**self._section, "subscriptions": _literal(subscriptions)}}
        tree = tree_of({**self._root, "groups": groups}, _PLACE)
        assert isinstance(tree, YamlMapping)
        try:
            return ConfigProblems(ConfigFiles((Path(_PLACE),), tree)).checked_config()
        except ConfigError as error:
            raise SettingError("; ".join(map(_text, error.problems))) from None


def check(value: object, kind: type | UnionType, expected: str) -> None:
    """Raise SettingError if a parameter is not of type `kind`. The error text ends with `expected`."""
    if not isinstance(value, kind):
        raise SettingError(f"{value!r} is not valid; expected {expected}")


def as_iterable(queues: Any) -> Iterable[Any]:
    """Return the queues; a string as one element, which is rejected later. Raises SettingError if not iterable."""
    check(queues, Iterable, "a list of queues, such as queues(topic) returns")
    return [queues] if isinstance(queues, str) else queues


def _literal(value: Any) -> Any:
    """Escape each `${` in a value: the configuration would replace it by a variable, for example in a password."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _literal(inner) for key, inner in value.items()}
    return value.replace("${", "$${") if isinstance(value, str) else value


def _text(problem: object) -> str:
    """Return the text of a problem, with the keyword instead of the key's path, and the variable if there is one."""
    assert isinstance(problem, ConfigProblem)
    path = problem.path[{"groups": 2, "client": 1}.get(str(problem.path[0]), 0) :]
    variable = f"{problem.place}: " if problem.place.startswith("$") else ""
    return f"{variable}{path_text(path) or 'group'}: {problem.message}"
