"""`rmqd.handler`: marks a function as a handler of decoded bodies."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Never, TypeVar, cast, get_args

F = TypeVar("F", bound=Callable[..., Any])

Format = Literal["json", "msgpack", "avro", "protobuf", "decode"]
OnInvalid = Literal["dead_letter", "retry", "skip"]

FORMATS: Final[tuple[Format, ...]] = get_args(Format)
ON_INVALID: Final[tuple[OnInvalid, ...]] = get_args(OnInvalid)


@dataclass(frozen=True, slots=True)
class Payload:
    """Which bodies a typed handler takes."""

    format: Format
    target: Any
    """The type that a body becomes, or what tells it."""
    on_invalid: OnInvalid
    """What becomes of a message with another body."""
    schema: Any = None
    """Of Avro: a dict, JSON text, or the path of a file."""
    is_registered: bool = False
    """Of Avro: whether bodies begin with what RocketMQ's schema registry puts there."""


@dataclass(frozen=True, slots=True)
class Depends:
    """What a parameter gets: `pool: Annotated[Pool, rmqd.Depends(make_pool)]`.

    `make` is called once per process, before the first message; without it, the annotated class is. It may be
    synchronous or asynchronous, and yield what it makes, to close it behind the `yield` when the process ends.
    """

    make: Callable[..., Any] | None = None


class TypedHandler:
    """A marked function. Called by itself, it is the function: a test calls it with what rmqd would.

    `names` may be used by annotations of a function that was defined inside of another one.
    """

    def __init__(self, function: Callable[..., Any], payload: Payload, names: Mapping[str, Any]) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), function)
        self.function = function
        self.payload = payload
        self.names = names

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __get__(self, instance: object, owner: type | None = None) -> TypedHandler:
        """A method, bound where it is asked for by an instance."""
        return TypedHandler(self.function.__get__(instance, owner), self.payload, self.names)


def handler(
    *unnamed: Never, on_invalid: OnInvalid = "dead_letter", schema: Any = None, registered: bool = False, **formats: Any
) -> Callable[[F], F]:
    """Have a function called with decoded bodies: `@rmqd.handler(json=Order)`.

    The function takes `(payload)`, `(payload, message)`, or a whole batch at once as `list[Order]`. `json`, `msgpack`
    and `avro` are a pydantic model, a dataclass, a msgspec Struct, or any other type that pydantic validates;
    `protobuf` is a class that protoc made; `decode` is a function that makes a payload of a body, or of a `Message`.

    Avro needs the writer's `schema`: a dict, JSON text, or a path that ends in `.avsc`. `registered` says that bodies
    begin with the 9 bytes that clients of RocketMQ's schema registry write there.

    `on_invalid` is what becomes of a message whose body is something else: `dead_letter`, with the validation error as
    its reason, `retry`, or `skip`. Raises TypeError and ValueError for other arguments.
    """
    if unnamed or len(formats) != 1 or not formats.keys() <= set(FORMATS):
        given = (
            ", ".join([*("something without a name" for _ in unnamed), *(f"{name}=" for name in formats)]) or "nothing"
        )
        accepted = " | ".join(f"{name}=" for name in FORMATS)
        raise TypeError(f"rmqd.handler got {given}; accepted: one of {accepted}, as in @rmqd.handler(json=Order)")
    if on_invalid not in ON_INVALID:
        raise ValueError(f"on_invalid is {on_invalid!r}; accepted: {' | '.join(ON_INVALID)}")
    [(name, target)] = formats.items()
    if name != "avro" and (schema is not None or registered):
        raise TypeError(f"rmqd.handler got schema= or registered= beside {name}=; accepted: beside avro=")
    if isinstance(target, str):
        raise TypeError(f"rmqd.handler got {name}={target!r}, a text; accepted: the type itself, as in json=Order")
    payload = Payload(cast("Format", name), target, on_invalid, schema, registered)

    def mark(function: F) -> F:
        if inspect.isclass(function) or not inspect.isroutine(function):
            raise TypeError(f"rmqd.handler marks a function or a method, and not {function!r}")
        caller = sys._getframe(1)
        names = {} if caller.f_locals is caller.f_globals else dict(caller.f_locals)
        return cast("F", TypedHandler(function, payload, names))

    return mark
