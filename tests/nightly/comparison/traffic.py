"""Sends the steps of a script to one name server and broker, and records the responses."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.nightly.comparison.bodies import decoded

BROKER, NAME_SERVER = "broker", "name server"
ONEWAY, RESPONSE = 2, 1
NO_ANSWER = "no answer"
BINARY, JAVA = 1, 0  # codes of the serialisation and of the language
VERSION = 513  # client version 5.5.0; given because some responses depend on it
ANSWER_SECONDS = 15.0
AGAIN_SECONDS = 0.05
NEVER_SECONDS = 0.3
SENDS = {10, 310, 320}
RUNTIME_INFO = 28

Frame = dict[str, Any]
"""code, flag, remark, language, version, fields, and the decoded body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request and its response. Texts may contain known values: `{mark}`, or `{sent[msgId]}` of a kept response.

    The request is repeated until `until` accepts a response, because brokers do some work in the background.
    """

    what: str
    code: int
    fields: Mapping[str, object] = field(default_factory=dict)
    body: object = b""
    link: str = "a"
    to: str = BROKER
    keep: str = ""
    until: Callable[[Frame], object] | None = None
    only: Callable[[Any, str], Any] | None = None
    """Selects the compared part of a body that also depends on other clients; called with the body and the mark."""
    aside: Collection[str] = ()
    """Header fields of the response that are not compared, because they also depend on other clients."""
    oneway: bool = False
    answered: bool = True
    """False if a later Take, which names this `what`, receives the response."""
    language: str = "JAVA"
    version: int = VERSION
    binary: bool = False
    """Whether the header is binary instead of JSON."""
    silent: bool = False
    """Whether the response is not compared, because the request only prepares other steps or cleans up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """The response to an earlier request."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A request from the broker on a link, and its response, unless it is one-way."""

    what: str
    code: int
    link: str = "a"
    answer: object = None
    answer_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """No frame arrives on a link: no response to a one-way request, and no request from the broker."""

    what: str
    link: str = "a"


Step = Ask | Take | Pushed | Quiet


class Link:
    """One connection. Received frames are kept until a step reads them."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS)
        self._opaques = itertools.count(1)
        self._answers: dict[int, Frame] = {}
        self._pushes: list[Frame] = []

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def request(self, step: Ask, fields: Mapping[str, str], body: bytes) -> int:
        """Send a request, and return its opaque."""
        opaque = next(self._opaques)
        if step.binary:
            self._send_header(BINARY, _binary_header(step.code, step.version, opaque, fields), body)
            return opaque
        head = {"code": step.code, "language": step.language, "version": step.version, "opaque": opaque}
        self._send({**head, "flag": ONEWAY if step.oneway else 0, "extFields": dict(fields)}, body)
        return opaque

    def answer(self, opaque: int) -> Frame:
        """Wait for the response to a request. Raises TimeoutError."""
        self._read_until(lambda: opaque in self._answers, ANSWER_SECONDS)
        return self._answers.pop(opaque)

    def pushed(self, code: int) -> Frame:
        """Wait for the broker's next request with this code. Raises TimeoutError."""
        self._read_until(lambda: any(push["code"] == code for push in self._pushes), ANSWER_SECONDS)
        found = next(push for push in self._pushes if push["code"] == code)
        self._pushes.remove(found)
        return found

    def reply(self, push: Frame, code: int, body: bytes) -> None:
        """Respond to a request from the broker."""
        head = {"code": code, "language": "JAVA", "version": VERSION, "opaque": push["opaque"], "flag": RESPONSE}
        self._send(head, body)

    def heard(self) -> list[Frame]:
        """Return the frames that no step has read. If there are none, wait NEVER_SECONDS for one."""
        try:
            self._read_until(lambda: self._answers or self._pushes, NEVER_SECONDS)
        except TimeoutError:
            return []
        heard = [*self._answers.values(), *self._pushes]
        self._answers.clear()
        self._pushes.clear()
        return heard

    def _send(self, head: Frame, body: bytes) -> None:
        self._send_header(0, json.dumps({**head, "serializeTypeCurrentRPC": "JSON"}).encode(), body)

    def _send_header(self, kind: int, header: bytes, body: bytes) -> None:
        prefix = struct.pack(">ii", 4 + len(header) + len(body), kind << 24 | len(header))
        self._socket.sendall(prefix + header + body)

    def _read_until(self, ready: Callable[[], object], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing came in {seconds:g} s")
            self._socket.settimeout(left)
            self._read_frame()

    def _read_frame(self) -> None:
        size, marked = struct.unpack(">iI", self._take(8))
        head = json.loads(self._take(marked & 0xFFFFFF))
        body = self._take(size - 4 - (marked & 0xFFFFFF))
        frame = {name: head.get(name) for name in ("code", "flag", "remark", "language", "version", "opaque")}
        frame |= {"fields": head.get("extFields") or {}, "body": decoded(body)}
        if head["flag"] & RESPONSE:
            self._answers[head["opaque"]] = frame
        else:
            self._pushes.append(frame)

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the connection was closed")
            data += part
        return bytes(data)


class Drive:
    """One run of a script. `mark` is part of all names of topics and groups, and the same for both brokers."""

    def __init__(self, addresses: Mapping[str, str], mark: str, now_ms: int) -> None:
        self._addresses = addresses
        self._mark = mark
        self._known: dict[str, object] = {"mark": mark, "now": now_ms, "broker": addresses[BROKER]}
        self._links: dict[tuple[str, str], Link] = {}
        self._open: dict[str, tuple[Link, int]] = {}
        self.record: dict[str, Any] = {}

    def run(self, steps: Iterable[Step]) -> dict[str, Any]:
        """Return the response of each step by its `what`; NO_ANSWER and the error if there was no response."""
        try:
            for step in steps:
                if step.what in self.record:
                    raise ValueError(f"two steps are called {step.what!r}")
                frame: Any
                try:
                    frame = self._do(step)
                except (OSError, KeyError) as error:
                    frame = {NO_ANSWER: f"{type(error).__name__}: {error}"}
                if frame is not None:
                    self.record[step.what] = frame
        finally:
            for link in self._links.values():
                link.close()
        return self.record

    def _do(self, step: Step) -> Any:
        match step:
            case Ask():
                return self._ask(step)
            case Take():
                link, opaque = self._open.pop(step.what.partition(":")[2].strip())
                return link.answer(opaque)
            case Pushed():
                link = self._link(BROKER, step.link)
                push = link.pushed(step.code)
                if not push["flag"] & ONEWAY:
                    link.reply(push, step.answer_code, self._bytes(step.answer))
                return push
            case Quiet():
                return self._link(BROKER, step.link).heard()

    def _ask(self, step: Ask) -> Frame | None:
        link = self._link(step.to, step.link)
        fields = {name: str(self._filled(value)) for name, value in step.fields.items()}
        body = self._bytes(step.body)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            opaque = link.request(step, fields, body)
            if step.oneway:
                return None
            if not step.answered:
                self._open[step.what] = (link, opaque)
                return None
            frame = link.answer(opaque)
            if step.until is None or step.until(frame) or time.monotonic() > deadline:
                break
            time.sleep(AGAIN_SECONDS)
        if step.code in SENDS and frame["code"] == 0:
            self._await_dispatch(link)
        if step.keep:
            self._known[step.keep] = defaultdict(str, frame["fields"], at=_commit_log_offset(frame))
        for name in step.aside:
            frame["fields"].pop(name, None)
        if step.only is not None:
            frame["body"] = step.only(frame["body"], self._mark)
        return None if step.silent else frame

    def _await_dispatch(self, link: Link) -> None:
        """Wait until all stored messages are in their queues, which the real broker does in the background."""
        look, deadline = Ask(what="how far the dispatch is", code=RUNTIME_INFO), time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            frame = link.answer(link.request(look, {}, b""))
            if frame["body"]["table"]["dispatchBehindBytes"] == "0":
                return
            time.sleep(AGAIN_SECONDS)

    def _link(self, to: str, name: str) -> Link:
        if (to, name) not in self._links:
            self._links[to, name] = Link(self._addresses[to])
        return self._links[to, name]

    def _bytes(self, body: object) -> bytes:
        if isinstance(body, bytes):
            return body
        if isinstance(body, str):
            return str(self._filled(body)).encode()
        return b"" if body is None else json.dumps(self._filled(body)).encode()

    def _filled(self, value: object) -> object:
        if isinstance(value, str):
            return value.format_map(self._known)
        if isinstance(value, Mapping):
            return {self._filled(key): self._filled(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._filled(item) for item in value]
        return value


def _binary_header(code: int, version: int, opaque: int, fields: Mapping[str, str]) -> bytes:
    pairs = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode() + struct.pack(">i", len(value.encode())) + value.encode()
        for name, value in fields.items()
    )
    return struct.pack(">hbhiiii", code, JAVA, version, opaque, 0, 0, len(pairs)) + pairs


def _commit_log_offset(frame: Frame) -> int:
    """Return a message's position in the commit log, from the id in the send response; -1 without an id."""
    msg_id = frame["fields"].get("msgId", "")
    return int(msg_id[16:32], 16) if len(msg_id) == 32 else -1
