"""Body: the base class of all bodies, which reads a dataclass from JSON and writes it to JSON.

The wire name of a field is the field's name in camel case. A field's type is str, int (64 bits), bool, float,
MessageQueue, another Body, a tuple or frozenset of these, a dict or Mapping; any may be optional. Two annotations
describe exceptions: `WireName` gives another wire name, and `Wire` another default, position, reader or writer.

    class LockBatchRequestBody(Body):
        consumer_group: str                                             # {"consumerGroup":"g",
        queues: Annotated[tuple[MessageQueue, ...], WireName("mqSet")]  #  "mqSet":[{"brokerName":"b",...}],
        only_this_broker: bool = False                                  #  "onlyThisBroker":false}

Reading: a field that is missing or null gets its default. Without a default, a collection becomes empty, and a field of
any other type raises a ProtocolError with its name. A float may be missing but not null. Unknown fields are ignored.
Writing: fields are sorted by name, as fastjson writes them, and sets by item. A field that is None is omitted. A
MessageQueue is written as an object, even if it is the key of a map, which fastjson writes as `{{…}:value}`.

The annotations of a class are read once, when its first body is read or written. The result is a plan, which has two
functions for each field: one reads the field, the other writes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from rmqd.wire import fields, loose_json
from rmqd.wire.fields import LazyDataclass
from rmqd.wire.loose_json import ObjectKey
from rmqd.wire.message_queue import MessageQueue


def queue_to_dict(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_dict(value: object) -> MessageQueue:
    """Return the queue that a JSON object describes. Raises ProtocolError."""
    data = fields.as_object(value, "a message queue")
    return MessageQueue(
        fields.required_text(data, "topic"),
        fields.required_text(data, "brokerName"),
        fields.required_integer(data, "queueId"),
    )


def queue_map_to_dict(values: Mapping[MessageQueue, Any]) -> dict[ObjectKey, Any]:
    """Return a map with queues as keys in the form that `loose_json.dumps` can write."""
    return {ObjectKey.of(queue_to_dict(queue)): value for queue, value in values.items()}


def queue_map_from_dict(value: object, what: str) -> dict[MessageQueue, Any]:
    """Return a JSON map with its keys converted to queues. The values are not converted. Raises ProtocolError."""
    return {queue_from_dict(fields.as_key(key, what)): item for key, item in fields.as_object(value, what).items()}


def offsets_from_dict(value: object, what: str) -> dict[MessageQueue, int]:
    """Return a JSON map with its keys converted to queues, and its values checked as offsets. Raises ProtocolError."""
    return {queue: fields.as_integer(item, what) for queue, item in queue_map_from_dict(value, what).items()}


Read = Callable[[Any, str], Any]  # (JSON value, its name for error messages)
Write = Callable[[Any], Any]

# the texts name the keys and values of maps in error messages
BrokerName = Annotated[str, "a broker name"]
ClientId = Annotated[str, "a client id"]
ClusterName = Annotated[str, "a cluster name"]
Group = Annotated[str, "a group"]
Topic = Annotated[str, "a topic"]
QueueId = Annotated[int, "a queue id"]


@dataclass(frozen=True, slots=True)
class WireOptions:
    """An annotation of a field that is read or written in another way than its type implies."""

    last: bool = False  # the field is written after all fields without `last`
    absent: str | None = None  # the value of a missing or null field, instead of the default
    read: Read | None = None  # replaces the reader for the type
    write: Write | None = None  # replaces the writer for the type; the field is omitted if it returns None


_PLAIN: Final = WireOptions()


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Body(LazyDataclass):
    """Base of all bodies and of the objects inside them."""

    called: ClassVar[str] = "a body"  # the name of such an object in error messages
    bare_keys: ClassVar[bool] = False  # whether numbers that are map keys are written without quotes
    constants: ClassVar[Mapping[str, Any]] = {}  # further wire fields, always written with these values, never read

    def __init_subclass__(cls, called: str = "", *, bare_keys: bool = False, **options: bool) -> None:
        super().__init_subclass__(**options)
        cls.called = called or cls.called
        cls.bare_keys = bare_keys or cls.bare_keys

    def to_dict(self) -> dict[str, Any]:
        plan = _PLANS.get(type(self)) or _make_plan(type(self))
        result = plan.names.copy()
        for name, wire, write in plan.writes:
            value = getattr(self, name)
            if write is not None and value is not None:
                value = write(value)
            if value is None:
                del result[wire]
            else:
                result[wire] = value
        return result

    def to_json(self) -> bytes:
        return loose_json.dumps(self.to_dict(), bare_keys=self.bare_keys)

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Return the body that a parsed JSON object describes. Raises ProtocolError."""
        return cls._from_object(fields.as_object(value, cls.called))

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Return the body that JSON text describes. Raises ProtocolError."""
        return cls._from_object(fields.body_object(body))

    @classmethod
    def _from_object(cls, data: dict[Any, Any]) -> Self:
        values = {}
        for name, wire, read, absent, null in (_PLANS.get(cls) or _make_plan(cls)).reads:
            value = data.get(wire, absent)
            if value is None:
                if null is dataclasses.MISSING:
                    continue
                value = null
            values[name] = read(value, wire)
        return cls(**values)


# Plain tuples, because large bodies have tens of thousands of objects, and Python unpacks named tuples more slowly.
# (field, wire name, reader, value if missing, value if null). MISSING as the value if null: use the class's default.
_ReadField = tuple[str, str, Read, Any, Any]
# (field, wire name, writer; None if the value is valid JSON already)
_WrittenField = tuple[str, str, Write | None]


class _Plan(NamedTuple):
    reads: tuple[_ReadField, ...]
    names: dict[str, Any]  # wire names in the order of writing, with the constants' values, and None for fields
    writes: tuple[_WrittenField, ...]


_PLANS: Final[dict[type, _Plan]] = {}


def _make_plan(cls: type[Body]) -> _Plan:
    cls.generate_methods()
    hints = get_type_hints(cls, include_extras=True)
    reads, writes, order = [], [], {(False, name): value for name, value in cls.constants.items()}
    for field in dataclasses.fields(cls):
        hint, wire = _split(hints[field.name])
        name = fields.wire_name(field.name, hints[field.name])
        reads.append((field.name, name, wire.read or _reader(hint), *_without_value(field, hint, wire)))
        writes.append((field.name, name, wire.write or _writer(hint)))
        order[wire.last, name] = None
    names = {name: value for (_, name), value in sorted(order.items(), key=lambda item: item[0])}
    plan = _PLANS[cls] = _Plan(tuple(reads), names, tuple(writes))
    return plan


def _without_value(field: dataclasses.Field[Any], hint: Any, wire: WireOptions) -> tuple[Any, Any]:
    """Return the values that replace a missing field and a null field, as in `_ReadField`."""
    has_default = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
    if hint is float and has_default:
        return field.default, None
    if wire.absent is not None:
        return wire.absent, wire.absent
    if has_default:
        return None, dataclasses.MISSING
    return None, _EMPTY.get(get_origin(hint))


_EMPTY: Final[dict[Any, Any]] = {tuple: [], frozenset: [], dict: {}, Mapping: {}}


def _split(hint: Any) -> tuple[Any, WireOptions]:
    """Return a field's type, without None and our annotations, and its `Wire` annotation."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        if ours := [note for note in notes if isinstance(note, WireOptions | fields.WireName)]:
            return _without_none(kind), next((note for note in ours if isinstance(note, WireOptions)), _PLAIN)
    return _without_none(hint), _PLAIN


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    [kind] = (kind for kind in get_args(hint) if kind is not NoneType)
    return kind


_READERS: Final[dict[Any, Read]] = {
    str: fields.as_text,
    int: fields.as_integer,
    bool: fields.as_boolean,
    float: fields.as_number,
    MessageQueue: lambda value, what: queue_from_dict(value),
}


def _reader(hint: Any) -> Read:
    if hint in _READERS:
        return _READERS[hint]
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is Annotated:
        read, called = _reader(kinds[0]), kinds[1]
        return lambda value, what: read(value, called)
    if origin in (tuple, frozenset):
        read = _reader(kinds[0])
        return lambda value, what: origin([read(item, what) for item in fields.as_list(value, what)])
    if origin in (dict, Mapping):
        return _map_reader(*kinds)
    return _body_reader(hint)


def _map_reader(key: Any, item: Any) -> Read:
    read = _reader(item)
    if key is MessageQueue:
        return lambda value, what: {queue: read(each, what) for queue, each in queue_map_from_dict(value, what).items()}
    read_key = _reader(key)
    if get_origin(item) in (tuple, frozenset):  # error messages name a list in a map by its key
        return lambda value, what: {
            read_key(each, what): read(items, each) for each, items in fields.as_object(value, what).items()
        }
    return lambda value, what: {
        read_key(each, what): read(items, what) for each, items in fields.as_object(value, what).items()
    }


def _body_reader(cls: type[Body]) -> Read:
    from_object, called = cls._from_object, cls.called
    return lambda value, what: from_object(value if isinstance(value, dict) else fields.as_object(value, called))


def _writer(hint: Any) -> Write | None:
    """Return the function that converts values of a type to JSON; None if these values need no conversion."""
    origin, kinds = get_origin(hint), get_args(hint)
    if hint is MessageQueue:
        return queue_to_dict
    if origin in (tuple, frozenset):
        order: Callable[[Any], list[Any]] = sorted if origin is frozenset else list
        write = _writer(kinds[0])
        return order if write is None else lambda value: [write(item) for item in order(value)]
    if origin in (dict, Mapping):
        return _map_writer(*kinds)
    return hint.to_dict if isinstance(hint, type) and issubclass(hint, Body) else None


def _map_writer(key: Any, item: Any) -> Write:
    write = _writer(item)
    as_items: Write = dict if write is None else lambda value: {each: write(one) for each, one in value.items()}
    return as_items if key is not MessageQueue else lambda value: queue_map_to_dict(as_items(value))


class DataVersion(Body, called="dataVersion"):
    """The version of a broker's table. `counter` grows with each change; `timestamp` is the last change (Unix ms)."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0
