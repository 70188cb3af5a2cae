"""Loads the plugins around a handler: middleware, hooks, allocate strategies and offset stores.

*Middleware* are functions around every call of a group's handler, in the order of the configuration. A middleware takes
the batch and `call_next`, and calls `call_next`, the next middleware or the handler, with the batch. A middleware is a
function, or a class that is created without arguments, with a method `__call__` and optionally `start` and `stop`. It
is asynchronous around an asynchronous handler, and synchronous around a synchronous handler. Its return value is
ignored, so a coroutine that was never awaited would not be noticed. This module checks that there is none.

*Allocate strategies* are rmqd's own, or an entry point of `rmqd.allocate_strategies`: a function or a callable object
with the signature of `AllocateMessageQueueStrategy`. Only the configured strategy is imported.

*Hooks* are all entry points `rmqd.hooks` of all distributions. A hook is an object, or a class that is created without
arguments, with one or more of the methods `before_batch`, `after_batch` and `wants`. Each is created once per process.

An *offset store* is a class, found by its entry point in `rmqd.offset_stores`, or as `module:attribute`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any, Final

from rmqd.config.model.group_model import BROKER, GroupConfig
from rmqd.config.problems import ConfigFinding, KeyPath
from rmqd.consumer import allocate
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError, with_result_checks, wrap_handler
from rmqd.consumer.hooks import Hook
from rmqd.errors import ConfigError
from rmqd.handler_api.batch import Batch, Decision, LoadedHandler, Outcome, raise_returned_decision
from rmqd.handler_api.typed.signatures import is_async, is_generator_function, takes_positional
from rmqd.offset_stores import OffsetStore
from rmqd.plugins.entry_points import (
    faults_located,
    find_object,
    import_attribute,
    import_object,
    installed_entry_points,
    not_installed_error,
    why,
)
from rmqd.plugins.handler_plugin import with_start_stop
from rmqd.plugins.option_form import OptionsForm, PluginFaultError, plugin_fault, refuse_unbound
from rmqd.runtime.own_threads import is_call_abandoned
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import wrap_namespace

_ACCEPTED = "a function of (batch, call_next), or a class without arguments whose instances are called that way"


def middleware_faults(names: Sequence[str]) -> Iterator[ConfigFinding]:
    """Import each middleware, and yield the faults that are visible without creating an instance."""
    for index, name in enumerate(names):
        try:
            _find(name)
        except PluginFaultError as error:
            yield from (ConfigFinding(("middleware", index), fault.message) for fault in error.faults)


def with_middleware(handler: LoadedHandler, names: Sequence[str]) -> LoadedHandler:
    """Return the handler wrapped in its middleware. The first middleware is outermost. Raises PluginFaultError."""
    made = [_make(index, name, in_loop=handler.is_async) for index, name in enumerate(names)]
    inside = with_result_checks(handler) if made else handler
    around = _around_async if handler.is_async else _around
    for name, call in zip(reversed(names), reversed(made), strict=True):
        inside = wrap_handler(inside, partial(around, name, call))
    return with_start_stop(inside, [(getattr(one, "start", None), getattr(one, "stop", None)) for one in made])


def _find(name: str) -> Any:
    target: Any = import_attribute(name)
    refuse_unbound(name, target, "name the class: {owner}")
    call, arguments = target, 2
    if inspect.isclass(target):
        call, arguments = next((vars(one)["__call__"] for one in target.__mro__ if "__call__" in vars(one)), None), 3
    try:
        fits = callable(call) and takes_positional(call, arguments)
    except ValueError as error:
        raise plugin_fault(f"{name} {error}; expected {_ACCEPTED}") from None
    if not fits or is_generator_function(call):
        raise plugin_fault(f"{name} cannot be called with (batch, call_next); expected {_ACCEPTED}")
    if any(hasattr(target, part) and is_generator_function(getattr(target, part)) for part in ("start", "stop")):
        raise plugin_fault(f"{name} has a start or stop with yield, which would never run; expected {_ACCEPTED}")
    return target


def _make(index: int, name: str, *, in_loop: bool) -> Any:
    made = _find(name)
    if inspect.isclass(made):
        try:
            made = made()
        except (Exception, SystemExit) as error:
            raise plugin_fault(f"the constructor of {name} failed: {why(error)}", "middleware", index) from error
    if is_async(made) != in_loop:
        kind, other = ("async def", "def") if in_loop else ("def", "async def")
        message = f"{name} is written with {other}, but the handler with {kind}; expected {kind}"
        raise plugin_fault(message, "middleware", index)
    return made


class _Passing:
    """The messages of a batch that a middleware passes to `call_next`."""

    def __init__(self, name: str, batch: Batch) -> None:
        self._name, self._batch = name, batch
        self._passed: set[int] | None = None  # indexes, or -1 for all messages; None until call_next is called
        self._created: list[Batch] = []  # batches with messages that the middleware created

    def pass_on(self, given: Batch) -> Batch:
        """Return the undecided messages of `given` as a batch, whose decisions apply to the middleware's batch."""
        if given is self._batch:
            self._passed = {-1}
            return given.undecided()  # without the messages that this middleware has decided
        places = {id(message): index for index, message in enumerate(self._batch)}
        indexes = [places.get(id(message), -1) for message in given]  # -1 for messages that the middleware created
        offsets = {message.queue_offset: index for index, message in enumerate(self._batch)}  # copies have them too
        passed = (places.get(id(message), offsets.get(message.queue_offset, -1)) for message in given)
        self._passed = (self._passed or set()).union(passed)
        if -1 in indexes:
            self._created.append(given)
        is_new = not hasattr(given, "_whole") and -1 not in indexes
        return (self._batch.part(indexes) if is_new else given).undecided()

    def result(self, result: Any) -> Any:
        """Return `result`. If `call_next` was called, retry the messages that were neither decided nor passed to it."""
        raise_returned_decision(result)
        lost = [one for given in self._created for one in given.decisions().values() if one.outcome is not Outcome.ACK]
        if lost and not self._batch.decisions() and not is_call_abandoned.get()():
            told = f"the handler's decisions about messages that the middleware {self._name} created have no effect"
            raise RuntimeError(f"{told}; give call_next the batch or batch.part(indexes)") from lost[0].error
        if self._passed is not None and -1 not in self._passed and not is_call_abandoned.get()():
            told = f"the middleware {self._name} did not give call_next a message; to skip it, call batch.ack(message)"
            for index in set(range(len(self._batch))) - self._passed:
                self._batch.decide(index, Decision(Outcome.RETRY, error=RuntimeError(told)))
        return result


def _around(name: str, call: Callable[..., Any], inner: Callable[..., Any], batch: Batch) -> Any:
    passing, unfinished = _Passing(name, batch), list[Batch]()

    def call_next(batch: Batch) -> Any:
        left = passing.pass_on(batch)
        unfinished.append(left)
        try:
            return inner(left) if left else None
        finally:
            unfinished.remove(left)

    result = call(batch, call_next)
    if unfinished and batch.undecided() and not is_call_abandoned.get()():
        raise HandlerNotAwaitedError(
            f"the middleware {name} returned before its call_next in another thread; wait for the result of call_next"
        )
    return passing.result(result)


async def _around_async(name: str, call: Callable[..., Any], inner: Callable[..., Any], batch: Batch) -> Any:
    given: list[Coroutine[Any, Any, Any]] = []
    passing = _Passing(name, batch)

    def call_next(batch: Batch) -> Any:
        left = passing.pass_on(batch)
        given.append(inner(left) if left else asyncio.sleep(0))
        return given[-1]

    result = await call(batch, call_next)
    forgotten = [one for one in given if inspect.getcoroutinestate(one) != inspect.CORO_CLOSED]
    for one in forgotten:
        if inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
            one.close()  # otherwise Python would warn about the coroutine later, at another place
    if forgotten:
        raise HandlerNotAwaitedError(
            f"the middleware {name} called call_next without awaiting it, so the handler has not handled the batch; "
            "write `await call_next(batch)`"
        )
    return passing.result(result)


STRATEGY_ENTRY_POINTS: Final = "rmqd.allocate_strategies"

_KEY: Final[KeyPath] = ("allocate_strategy",)
_FORM: Final = "(group, client_id, queues, client_ids)"
_EXPECTED_STRATEGY: Final = (
    f"expected a function of {_FORM} that returns the member's queues, or an instance that is called that way"
)


def load_strategy(group: str, settings: GroupConfig, namespace: str = "") -> allocate.AllocateStrategy:
    """Return the allocate strategy of a group. `namespace` is added to configured topics. Raises ConfigError."""
    if settings.engine == "spark":  # the strategy may be inherited, and Spark divides the queues itself
        return allocate.AllocateStrategy("averagely", allocate.ALLOCATE_STRATEGIES["averagely"])
    name = settings.allocate_strategy
    try:
        return allocate.AllocateStrategy(name, _built_in(settings, namespace) or _installed(name))
    except PluginFaultError as error:
        raise ConfigError([settings.problem(group, _KEY, str(error))]) from error


def _built_in(settings: GroupConfig, namespace: str) -> allocate.AllocateMessageQueueStrategy | None:
    if settings.allocate_strategy == "by_config":
        named = [(wrap_namespace(one.topic, namespace), one) for one in settings.allocate_queues]
        return allocate.AllocateByConfig(
            tuple(MessageQueue(topic, one.broker_name, one.queue_id) for topic, one in named)
        )
    if settings.allocate_strategy == "by_machine_room":
        return allocate.AllocateByMachineRoom(frozenset(settings.machine_rooms))
    return allocate.ALLOCATE_STRATEGIES.get(settings.allocate_strategy)


def _installed(name: str) -> allocate.AllocateMessageQueueStrategy:
    entry_points = installed_entry_points(STRATEGY_ENTRY_POINTS)
    if name not in entry_points:
        raise not_installed_error("allocate strategy", name, dict.fromkeys([*allocate.STRATEGY_NAMES, *entry_points]))
    strategy: Any = import_object("allocate strategy", entry_points[name], otherwise="a unique name")
    _check_form(entry_points[name][0].value, strategy)
    found: allocate.AllocateMessageQueueStrategy = strategy
    return found


def _check_form(where: str, strategy: Any) -> None:
    if inspect.isclass(strategy):
        raise plugin_fault(f"{where} is a class; {_EXPECTED_STRATEGY}")
    if not callable(strategy):
        raise plugin_fault(f"{where} cannot be called; {_EXPECTED_STRATEGY}")
    if is_async(strategy):
        raise plugin_fault(f"{where} is asynchronous, but a strategy only computes; {_EXPECTED_STRATEGY}")
    try:
        inspect.signature(strategy).bind("group", "client_id", [], [])
    except TypeError:
        raise plugin_fault(f"{where} cannot be called with {_FORM}; {_EXPECTED_STRATEGY}") from None
    except ValueError:
        pass  # a callable without a signature, such as some builtins, cannot be checked


HOOK_ENTRY_POINTS: Final = "rmqd.hooks"

_METHODS: Final = ("before_batch", "after_batch", "wants")
_EXPECTED_HOOK: Final = "expected an object, or a class without arguments, with before_batch, after_batch or wants"


@functools.cache
def load_hooks() -> tuple[Hook, ...]:
    """Return all installed hooks, ordered by name. They are created once. Raises ConfigError with all problems."""
    hooks, problems = [], []
    for name, entry_point in _entry_points().items():
        try:
            hooks.append(_hook(name, entry_point))
        except PluginFaultError as error:
            problems.append(f"{HOOK_ENTRY_POINTS}: the hook {entry_point.name} of {_owner(entry_point)}: {error}")
    if problems:
        raise ConfigError(list[object](problems))
    return tuple(hooks)


def hooks_of(options: ConsumerOptions) -> tuple[Hook, ...]:
    """Return the hooks that a group's `hooks` selects. Raises ConfigError like `load_hooks`, and for unknown names."""
    wanted = options.hooks
    if wanted == "none":
        return ()
    hooks = load_hooks()
    if wanted == "all":
        return hooks
    names = [hook.name for hook in hooks]
    for name in wanted:
        # `check_hooks` has accepted the name, but the hook may be newer than this process, or missing on a Spark node
        if name not in names:
            problem = f"{not_installed_error('hook', name, names)}; restart to load a hook that was installed later"
            raise ConfigError([f"groups.{options.group}.hooks: {problem}"])
    return tuple(hook for hook in hooks if hook.name in wanted)


def check_hooks(group: str, settings: GroupConfig) -> None:
    """Raise ConfigError if a group's `hooks` names a hook that is not installed. Hooks are not imported."""
    known = _entry_points()
    named = [] if isinstance(settings.hooks, str) else settings.hooks
    problems: list[object] = [
        settings.problem(group, ("hooks", index), str(not_installed_error("hook", name, known)))
        for index, name in enumerate(named)
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)


def _entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of hooks by name. The distribution is added to a name that several hooks have."""
    return {
        name if len(found) == 1 else f"{name} ({_owner(one)})": one
        for name, found in installed_entry_points(HOOK_ENTRY_POINTS).items()
        for one in found
    }


def _owner(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist else "an unknown distribution"


def _hook(name: str, entry_point: EntryPoint) -> Hook:
    target: Any = import_object("hook", [entry_point], "")
    if inspect.isclass(target):
        try:
            target = target()
        except (Exception, SystemExit) as error:  # the plugin's constructor may raise anything
            raise plugin_fault(f"{entry_point.value} cannot be created: {why(error)}; {_EXPECTED_HOOK}") from error
    methods = {method: getattr(target, method, None) for method in _METHODS}
    if not any(methods.values()):
        raise plugin_fault(f"{entry_point.value} is not a hook; {_EXPECTED_HOOK}")
    for method, call in methods.items():
        if call is not None and (not callable(call) or is_async(call) or is_generator_function(call)):
            raise plugin_fault(f"{entry_point.value} has a {method} that is not a plain method; expected def {method}")
    return Hook(name, **methods)


OFFSET_STORE_ENTRY_POINTS: Final = "rmqd.offset_stores"
_STORE_METHODS: Final = ("open", "close", "take", "transaction", "write")


def load_offset_store(group: str, settings: GroupConfig) -> Callable[[], OffsetStore] | None:
    """Return a factory of a group's custom offset store; None if brokers keep the offsets.

    Raises ConfigError if the plugin cannot be used. The factory raises ConfigError if the constructor fails.
    """
    if settings.offset_store.plugin == BROKER:
        return None
    with faults_located(group, settings, "offset_store"):
        target: Any = find_object("offset store", OFFSET_STORE_ENTRY_POINTS, settings.offset_store.plugin, BROKER)
        if not inspect.isclass(target) or not all(callable(getattr(target, name, None)) for name in _STORE_METHODS):
            raise plugin_fault(f"the plugin is not an offset store; expected a class with {', '.join(_STORE_METHODS)}")
        form = replace(OptionsForm.of(target, 0), model=getattr(target, "Options", None))
        bound = form.bind_options(target, form.validate_options("offset store", settings.offset_store.options))

    def make() -> OffsetStore:
        try:
            store: OffsetStore = bound()
        except Exception as error:
            message = f"the offset store's constructor failed: {why(error)}"
            raise ConfigError([settings.problem(group, ("offset_store", "options"), message)]) from error
        return store

    return make
