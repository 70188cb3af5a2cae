"""`rmqd.handler`, which marks a typed handler, and the inspection of callables and their annotations.

Handlers, decoders and all other plugins are inspected here, so that they accept the same forms: functions, methods,
partials, classes and objects with `__call__`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal, Never, TypeVar, cast, get_args


class AnnotationError(ValueError):
    """An annotation is text that cannot be evaluated."""


def type_hint_of(
    target: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any] | None = None
) -> Any:
    """Return the type in a parameter's annotation, including `Annotated[...]`; `Parameter.empty` if not annotated.

    The annotation may use `names`, and the globals of the function's module. Other annotations of the function are not
    evaluated, because they may use names that are only imported for type checkers. Raises AnnotationError.
    """
    return _evaluated(target, parameter.name, parameter.annotation, names)


def without_extras(hint: Any) -> Any:
    """Return the type in a hint, without the extras of `Annotated`."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def return_type_of(function: Callable[..., Any]) -> Any:
    """Return the declared return type of a callable, or a class itself; Any if not declared. Raises AnnotationError."""
    if inspect.isclass(function):
        return function
    try:
        hint = inspect.signature(function).return_annotation
    except (ValueError, TypeError):  # a builtin without a signature
        return Any
    return Any if hint is inspect.Signature.empty else _evaluated(function, "return", hint)


def _evaluated(target: Callable[..., Any], name: str, hint: Any, names: Mapping[str, Any] | None = None) -> Any:
    if hint is inspect.Parameter.empty:
        return hint
    function = inspect.unwrap(called_function(target))
    holder = SimpleNamespace(__annotations__={name: hint})
    known = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(holder, known, dict(names or {}), include_extras=True)[name]
    except Exception as error:
        raise AnnotationError(f"the annotation {hint!r} of {name} cannot be evaluated: {error}") from error


POSITIONAL_KINDS: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def called_function(target: Callable[..., Any]) -> Any:
    """Return the routine that a call runs: a class's constructor, an object's `__call__`, a partial's function."""
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.isclass(target):
        return target.__init__ if inspect.isfunction(target.__init__) else target.__new__
    return target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004 - its code is needed


def is_async(target: Callable[..., Any]) -> bool:
    """Return whether a call returns a coroutine."""
    # the target itself may be an AsyncMock
    return any(inspect.iscoroutinefunction(one) for one in (target, called_function(target)))


def is_generator_function(target: Callable[..., Any]) -> bool:
    """Return whether a callable is a generator function, whose call runs none of its code."""
    function = called_function(target)
    # only decorators of contextlib are unwrapped, because other decorators may run the generator
    while getattr(function, "__globals__", None) is vars(contextlib):
        function = getattr(function, "__wrapped__", None)
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def parameters_of(target: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a call. A builtin without a signature counts as having one positional parameter.

    For a wrapper made with `functools.wraps`, these are the wrapper's parameters. If it has `*args` or `**kwargs`, they
    are the parameters of the wrapped function.
    """
    try:
        own = list(inspect.signature(target, follow_wrapped=False).parameters.values())
        passes_on = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in own)
        return list(inspect.signature(target).parameters.values()) if passes_on else own
    except (ValueError, TypeError):
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]


def positional_argument_range(target: Callable[..., Any], named: Collection[str] = ()) -> tuple[int, int]:
    """Return how many positional arguments a callable needs, and how many it takes.

    Raises ValueError if it needs keyword-only arguments other than `named`, or has a parameter with `Depends`.
    """
    parameters = parameters_of(target)
    if depends := [one.name for one in parameters if isinstance(one.default, Depends)]:
        raise ValueError(f"has Depends in its parameter {depends[0]}, which only @rmqd.handler supports")
    positional = [one for one in parameters if one.kind in POSITIONAL_KINDS]
    required = [one for one in positional if one.default is one.empty]
    missing = [
        one.name
        for one in parameters
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty and one.name not in named
    ]
    if missing:
        raise ValueError(f"needs keyword arguments that rmqd does not pass: {', '.join(missing)}")
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return len(required), max(len(positional), 1) if takes_any else len(positional)


def takes_positional(target: Callable[..., Any], count: int) -> bool:
    """Return whether a callable can be called with this number of positional arguments.

    Raises ValueError like positional_argument_range.
    """
    required, most = positional_argument_range(target)
    return required <= count and (count <= most or any(one.kind is one.VAR_POSITIONAL for one in parameters_of(target)))


def options_parameter(target: Callable[..., Any], place: int) -> inspect.Parameter | None:
    """Return the parameter for the options: the parameter `options`, else the parameter at `place` without a default.

    `place` counts from 0. The parameters before `place` take other arguments. None if there is no such parameter.
    """
    bound = target.keywords if isinstance(target, functools.partial) else {}
    parameters = [one for one in parameters_of(target) if one.name not in bound]
    positional = [one for one in parameters if one.kind in POSITIONAL_KINDS]
    for one in (*positional[place:], *(one for one in parameters if one.kind is one.KEYWORD_ONLY)):
        if one.name == "options" and (one.kind is not one.POSITIONAL_ONLY or one is positional[place]):
            return one
    at_place = positional[place] if len(positional) > place else None
    return None if at_place is None or at_place.default is not at_place.empty else at_place


def unbound_function(target: Any) -> Any:
    """Return the function inside a partial that binds only keywords; any other target is returned unchanged."""
    return target.func if isinstance(target, functools.partial) and not target.args else target


def owner_of_unbound(target: Any) -> str:
    """Return the class name if `target` is a method that is not bound to an object, as in `Class.method`; else ""."""
    target = unbound_function(target)
    function = inspect.unwrap(target) if inspect.isroutine(target) and not inspect.ismethod(target) else None
    owner, _, name = getattr(function, "__qualname__", "").rpartition(".")
    if not inspect.isfunction(function) or not owner or owner.endswith("<locals>"):
        return ""
    holder: Any = sys.modules.get(function.__module__)
    for part in owner.split("."):
        holder = getattr(holder, part, None)
    if isinstance(holder, type):
        return "" if isinstance(inspect.getattr_static(holder, name, None), staticmethod) else owner
    first = next(iter(parameters_of(target)), None)  # a class inside a function cannot be looked up
    return owner if first is not None and first.name == "self" else ""


F = TypeVar("F", bound=Callable[..., Any])

Format = Literal["json", "msgpack", "avro", "protobuf", "decode"]
OnInvalid = Literal["dead_letter", "retry", "skip"]

FORMATS: Final[tuple[Format, ...]] = get_args(Format)
ON_INVALID: Final[tuple[OnInvalid, ...]] = get_args(OnInvalid)


@dataclass(frozen=True, slots=True)
class Payload:
    """The arguments of `rmqd.handler`: how bodies are decoded."""

    format: Format
    target: Any
    """The type of the decoded body; for `decode`, the function that decodes bodies."""
    on_invalid: OnInvalid
    """How messages with an invalid body are settled."""
    schema: Any = None
    """For Avro: a dict, JSON text, or the path of a file."""
    is_registered: bool = False
    """For Avro: whether bodies start with the prefix of RocketMQ's schema registry."""


@dataclass(frozen=True, slots=True)
class Depends:
    """The dependency of a parameter: `pool: Annotated[Pool, rmqd.Depends(make_pool)]`.

    `make` is called once per process, before the first message; the default is the annotated class. It may be
    synchronous or asynchronous. A generator yields the object, and closes it after the `yield` when the process ends.
    """

    make: Callable[..., Any] | None = None


class TypedHandler:
    """A function that `rmqd.handler` has marked. Tests can call it directly, like the function itself.

    `names` has the local variables at the definition, because annotations of a nested function may use them.
    """

    def __init__(self, function: Callable[..., Any], payload: Payload, names: Mapping[str, Any]) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), function)
        self.function = function
        self.payload = payload
        self.names = names

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __get__(self, instance: object, owner: type | None = None) -> TypedHandler:
        """Return the marked method, bound to `instance`."""
        return TypedHandler(self.function.__get__(instance, owner), self.payload, self.names)


def hides_typed_handler(target: Any) -> bool:
    """Return whether a partial, or a wrapper made with `functools.wraps`, hides the mark of a typed handler."""
    while target is not None and not isinstance(target, TypedHandler):
        target = target.func if isinstance(target, functools.partial) else getattr(target, "__wrapped__", None)
    return target is not None


def handler(
    *unnamed: Never, on_invalid: OnInvalid = "dead_letter", schema: Any = None, registered: bool = False, **formats: Any
) -> Callable[[F], F]:
    """Mark a function as a handler of decoded bodies: `@rmqd.handler(json=Order)`.

    The function takes `(payload)`, `(payload, message)`, or a batch's payloads as `list[Order]`. `json`, `msgpack` and
    `avro` name the payload's type: a pydantic model, a dataclass, a msgspec Struct, or another type that pydantic
    validates. `protobuf` is a class generated by protoc. `decode` is a function that converts a body, or a `Message`,
    to a payload.

    Avro needs the writer's `schema`: a dict, JSON text, or a path that ends in `.avsc`. With `registered`, bodies start
    with the 9 bytes that clients of RocketMQ's schema registry write.

    `on_invalid` decides about messages with an invalid body: `dead_letter` (the reason is the validation error),
    `retry`, or `skip`. Raises TypeError or ValueError for invalid arguments.
    """
    if unnamed or len(formats) != 1 or not formats.keys() <= set(FORMATS):
        given = ", ".join([*("a positional argument" for _ in unnamed), *(f"{name}=" for name in formats)]) or "nothing"
        accepted = " | ".join(f"{name}=" for name in FORMATS)
        raise TypeError(f"rmqd.handler got {given}; expected one of {accepted}, as in @rmqd.handler(json=Order)")
    if on_invalid not in ON_INVALID:
        raise ValueError(f"{on_invalid!r} is not a valid on_invalid; expected {' | '.join(ON_INVALID)}")
    [(name, target)] = formats.items()
    if name != "avro" and (schema is not None or registered):
        raise TypeError(f"rmqd.handler got schema= or registered= with {name}=; expected avro=")
    if isinstance(target, str):
        raise TypeError(f"rmqd.handler got {name}={target!r}, a text; expected the type itself, as in json=Order")
    payload = Payload(cast("Format", name), target, on_invalid, schema, registered)

    def mark(function: F) -> F:
        if inspect.isclass(function) or not inspect.isroutine(function):
            raise TypeError(f"rmqd.handler cannot mark {function!r}; expected a function or a method")
        caller = sys._getframe(1)
        names = {} if caller.f_locals is caller.f_globals else dict(caller.f_locals)
        return cast("F", TypedHandler(function, payload, names))

    return mark
