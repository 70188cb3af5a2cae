"""Bodies in other formats than JSON: MessagePack, Avro, Protobuf, and an author's decode function."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pydantic
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import rmqd
from rmqd import Message
from rmqd.errors import install_command
from rmqd.plugins.handler_plugin import HandlerPlugin
from rmqd.plugins.option_form import PluginFaultError
from rmqd.testing import RocketMQ, RunResult

Run = Callable[..., RunResult]
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "int"}, {"name": "customer", "type": "string", "default": "ada"}],
}
ORDER: dict[str, Any] = {"number": 7, "customer": "grace"}


class Model(pydantic.BaseModel):
    """An order as a pydantic model."""

    number: int
    customer: str


@dataclass
class Data:
    """The same as a dataclass."""

    number: int
    customer: str


Struct = msgspec.defstruct("Struct", [("number", int), ("customer", str)])
KINDS = pytest.mark.parametrize("kind", [Model, Data, Struct], ids=lambda kind: kind.__name__)


def avro_body(record: dict[str, Any] = ORDER) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), record)
    return stream.getvalue()


def protobuf_class() -> Any:
    """The class that protoc generates for `message Order {int32 number = 1; string customer = 2;}`."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="number", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    order.field.add(name="customer", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def handled(rocketmq: RocketMQ, run_handler: Run, mark: Any, *bodies: bytes) -> tuple[list[Any], list[str]]:
    """The payloads that a handler with this decorator gets, and the reasons of the dead letters."""
    seen: list[Any] = []

    @mark
    async def handle(order):  # type: ignore[no-untyped-def]
        seen.append(order)

    rocketmq.create_topic("orders")
    for body in bodies:
        rocketmq.send("orders", body)
    result = run_handler(handle, topic="orders", group="mailer")
    return seen, [letter.properties["RMQD_REASON"] for letter in result.dead_letters]


@KINDS
def test_message_pack(rocketmq: RocketMQ, run_handler: Run, kind: Any) -> None:
    bodies = [msgspec.msgpack.encode(ORDER), b"\xc1", msgspec.msgpack.encode({"customer": "grace"})]
    seen, reasons = handled(rocketmq, run_handler, rmqd.handler(msgpack=kind), *bodies)

    assert seen == [kind(**ORDER)]
    assert len(reasons) == 2
    assert all(reason.startswith(f"the body is not a valid {kind.__name__} in MessagePack: ") for reason in reasons)
    assert "number" in reasons[1]


@KINDS
@pytest.mark.parametrize("form", ["dict", "text", "file"])
def test_avro(rocketmq: RocketMQ, run_handler: Run, kind: Any, form: str, tmp_path: Path) -> None:
    text = msgspec.json.encode(SCHEMA).decode()
    (tmp_path / "order.avsc").write_text(text)
    schema = {"dict": SCHEMA, "text": text, "file": str(tmp_path / "order.avsc")}[form]
    seen, reasons = handled(
        rocketmq, run_handler, rmqd.handler(avro=kind, schema=schema), avro_body(), avro_body()[:3], avro_body() + b"x"
    )

    assert seen == [kind(**ORDER)]
    assert len(reasons) == 2
    what = f"the body is not a valid {kind.__name__} in Avro"
    assert reasons[1] == f"{what}: ValueError: 1 bytes are left after the Avro record"


def test_avro_by_a_schema_registry(rocketmq: RocketMQ, run_handler: Run) -> None:
    """Its clients write a prefix of 9 bytes, and wrote 17 bytes before the first release."""
    released = b"\x10" + (1153).to_bytes(8)
    former = b"\x20" + (1153).to_bytes(8) + bytes(8)
    mark = rmqd.handler(avro=Data, schema=SCHEMA, registered=True)
    seen, reasons = handled(
        rocketmq, run_handler, mark, released + avro_body(), former + avro_body(), b"\x10" + avro_body()
    )

    assert seen == [Data(**ORDER)] * 2
    assert [reason.partition(": ")[2] for reason in reasons] == [
        "ProtocolError: the body does not begin with the prefix of RocketMQ's schema registry clients"
    ]


def test_protobuf(rocketmq: RocketMQ, run_handler: Run) -> None:
    kind = protobuf_class()
    order = kind(**ORDER)
    seen, reasons = handled(rocketmq, run_handler, rmqd.handler(protobuf=kind), order.SerializeToString(), b"oops")

    assert seen == [order]
    assert [reason.partition(": ")[0] for reason in reasons] == ["the body is not a valid Order in Protobuf"]


def upper(body: bytes) -> str:
    return body.decode("ascii").upper()


def with_tag(message: Message) -> str:
    return f"{message.keys}: {upper(message.body)}"


@pytest.mark.parametrize(("decode", "expected"), [(upper, "ADA"), (with_tag, "None: ADA"), (str, "b'ada'")])
def test_a_decode_function(rocketmq: RocketMQ, run_handler: Run, decode: Any, expected: str) -> None:
    bodies = [b"ada"] if decode is str else [b"ada", b"\xff"]
    seen, reasons = handled(rocketmq, run_handler, rmqd.handler(decode=decode), *bodies)

    assert seen == [expected]
    assert [reason.partition(": ")[0] for reason in reasons] == [
        f"the body is not a valid payload of {decode.__name__}" for _ in bodies[1:]
    ]


async def later(body: bytes) -> None: ...
def nothing() -> None: ...


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (
            lambda: rmqd.handler(avro=Model),
            "avro=Model has no schema to read bodies with; expected schema= with",
        ),
        (
            lambda: rmqd.handler(avro=Model, schema={"type": "rekord"}),
            "the schema is not a valid Avro schema: .*; expected schema=",
        ),
        (lambda: rmqd.handler(avro=Model, schema="none.avsc"), "the schema none.avsc cannot be read: No such file"),
        (lambda: rmqd.handler(protobuf=Model), "cannot parse bodies; expected a message class generated by protoc"),
        (lambda: rmqd.handler(decode=later), r"is not a synchronous function; expected a function of \(body\)"),
        (lambda: rmqd.handler(decode=nothing), r"takes no arguments; expected a function of \(body\)"),
    ],
)
def test_an_invalid_schema_or_decoder_is_refused_at_the_start(mark: Callable[[], Any], said: str) -> None:
    with pytest.raises(PluginFaultError, match=said):
        HandlerPlugin.of("shop:handle", mark()(lambda order: None))


@pytest.mark.parametrize(("format_", "package"), [("msgpack", "msgspec"), ("avro", "fastavro")])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, format_: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    said = re.escape(f"{format_}= needs {package}, which is not installed; run {install_command(format_)}")
    formats: dict[str, Any] = {format_: Model}
    with pytest.raises(PluginFaultError, match=said):
        HandlerPlugin.of("shop:handle", rmqd.handler(**formats)(lambda order: None))


def test_a_schema_is_only_allowed_with_avro() -> None:
    with pytest.raises(TypeError, match="schema= or registered= with json=; expected avro="):
        rmqd.handler(json=Model, schema=SCHEMA)
