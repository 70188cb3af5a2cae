"""Headers of pulls, and a faster way for each: templates to write them, and a pattern to read the responses.

A broker writes the headers of all pull responses alike: only the opaque and three offsets change. The first such header
becomes a pattern with groups for these numbers and every other byte fixed. A header that matches the pattern has the
same fields except for the numbers. All other headers go to `decode_command`, the only judge of valid commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple, Self

from rmqd.codes import LanguageCode, RequestCode, ResponseCode, SerializeType
from rmqd.errors import ProtocolError
from rmqd.wire.acl import Credentials, signed_content
from rmqd.wire.bodies.heartbeat_data import EXPRESSION_TAG
from rmqd.wire.command import LANGUAGE, VERSION, RemotingCommand, decode_command
from rmqd.wire.headers.request_header import RequestHeader

PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""The codes of responses with a PullMessageResponseHeader."""
MAX_MSG_BYTES: Final = 262144  # Java: pullBatchSizeInBytes
_PREFIX: Final = Struct(">II")
_LONG_MAX: Final = 2**63 - 1
# in signing order
_CHANGING: Final = ("commitOffset", "maxMsgNums", "queueOffset", "subVersion", "suspendTimeoutMillis", "sysFlag")


class PullMessageRequestHeader(RequestHeader, code=RequestCode.PULL_MESSAGE):
    """Asks for messages of one queue. PullSysFlag has the bits of `sys_flag`."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    subscription: str | None = None
    sub_version: int
    expression_type: str | None = None
    max_msg_bytes: int | None = None


def decode_pull_request(ext_fields: Mapping[str, str]) -> PullMessageRequestHeader:
    """Read a request's header by hand, because brokers get thousands each second. Raises ProtocolError."""
    get = ext_fields.get
    try:
        return PullMessageRequestHeader(
            consumer_group=ext_fields["consumerGroup"],
            topic=ext_fields["topic"],
            queue_id=int(ext_fields["queueId"]),
            queue_offset=int(ext_fields["queueOffset"]),
            max_msg_nums=int(ext_fields["maxMsgNums"]),
            sys_flag=int(ext_fields["sysFlag"]),
            commit_offset=int(ext_fields["commitOffset"]),
            suspend_timeout_millis=int(ext_fields["suspendTimeoutMillis"]),
            subscription=get("subscription"),
            sub_version=int(ext_fields["subVersion"]),
            expression_type=get("expressionType"),
        )
    except (KeyError, ValueError):
        return PullMessageRequestHeader.from_ext_fields(ext_fields)  # raises the error with the wrong field


class PullMessageResponseHeader(NamedTuple):
    """The offset of the next pull, and the queue's ends. A tuple, because thousands are created each second."""

    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0
    topic_sys_flag: int = 0
    group_sys_flag: int = 0
    offset_delta: int = 0  # added to the offsets of the records of a static topic

    @classmethod
    def from_ext_fields(cls, ext_fields: Mapping[str, str]) -> Self:
        """Read the response to a pull, with any code in `PULLED`. Raises ProtocolError."""
        try:
            header = cls(
                int(ext_fields["nextBeginOffset"]),
                int(ext_fields["minOffset"]),
                int(ext_fields["maxOffset"]),
                int(ext_fields.get("suggestWhichBrokerId", "0")),
                0,
                0,
                0 if (delta := ext_fields.get("offsetDelta")) is None else int(delta),
            )
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the response to a pull lacks an offset: {error!r:.200}") from error
        if not 0 <= header[0] <= _LONG_MAX:
            raise ProtocolError(f"the response to a pull continues at {header[0]}, which is not a valid offset")
        return header

    def ext_fields(self) -> dict[str, str]:
        """Return the header as ext fields."""
        return {
            "nextBeginOffset": str(self.next_begin_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
            "suggestWhichBrokerId": str(self.suggest_which_broker_id),
            "topicSysFlag": str(self.topic_sys_flag),
            "groupSysFlag": str(self.group_sys_flag),
            **({"offsetDelta": str(self.offset_delta)} if self.offset_delta else {}),
        }


class PullRequestTemplate:
    """Writes the frames of one queue's pull requests. The constant parts are encoded once."""

    __slots__ = ("_content", "_credentials", "_format")

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        queue_id: int,
        broker_name: str,
        expression_type: str = EXPRESSION_TAG,
        subscription: str | None = None,
        extra_fields: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`subscription` is for PullSysFlag.SUBSCRIPTION. All requests have `extra_fields`; `credentials` sign them."""
        fixed = {
            **(extra_fields or {}),
            **(credentials.fields() if credentials is not None else {}),
            "bname": broker_name,
            "consumerGroup": group,
            "expressionType": expression_type,
            "maxMsgBytes": str(MAX_MSG_BYTES),
            "queueId": str(queue_id),
            "topic": topic,
        }
        if subscription is not None:
            fixed["subscription"] = subscription
        members = json.dumps(fixed, separators=(",", ":"))[1:-1].encode().replace(b"%", b"%%")
        self._format = (
            b'{"code":%d,"flag":0,"language":"%s","version":%d,'
            % (RequestCode.PULL_MESSAGE, LANGUAGE.name.encode(), VERSION)
            + b'"opaque":%d,"extFields":{"queueOffset":"%d","commitOffset":"%d","sysFlag":"%d","subVersion":"%d",'
            + b'"suspendTimeoutMillis":"%d","maxMsgNums":"%d",'
            + members
            + (b"}}" if credentials is None else b',"Signature":"')
        )
        self._credentials = credentials
        changing = dict.fromkeys(_CHANGING, "%d")
        escaped = {name: value.replace("%", "%%") for name, value in fixed.items()}
        self._content = signed_content(changing | escaped, b"")

    def frame(
        self,
        opaque: int,
        queue_offset: int,
        commit_offset: int,
        sys_flag: int,
        sub_version: int,
        suspend_ms: int,
        max_msg_nums: int,
    ) -> bytes:
        """Return the whole frame of one pull request."""
        header = self._format % (opaque, queue_offset, commit_offset, sys_flag, sub_version, suspend_ms, max_msg_nums)
        if self._credentials is not None:
            changing = (commit_offset, max_msg_nums, queue_offset, sub_version, suspend_ms, sys_flag)
            header = b'%s%s"}}' % (header, self._credentials.sign(self._content % changing))
        size = len(header)
        return _PREFIX.pack(size + 4, size) + header


class PullReplyTemplate:
    """Writes a broker's responses to pulls. The constant parts are encoded once."""

    __slots__ = ("_format",)

    def __init__(self, language: LanguageCode, version: int) -> None:
        self._format = (
            b'{"code":%d,"flag":1,"language":"'
            + language.name.encode()
            + b'","opaque":%d,"version":'
            + str(version).encode()
            + b',"remark":"%s","extFields":{"nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d",'
            + b'"suggestWhichBrokerId":"%d","topicSysFlag":"%d","groupSysFlag":"%d"}}'
        )

    def frame(
        self, opaque: int, code: int, remark: bytes, header: PullMessageResponseHeader, records: Iterable[bytes]
    ) -> bytes:
        """Return the whole frame of one response. `remark` is written unescaped, and the offset delta is omitted."""
        head = self._format % (code, opaque, remark, *header[:-1])
        body = b"".join(records)
        size = len(head)
        return b"".join((_PREFIX.pack(size + len(body) + 4, size), head, body))


_OFFSETS: Final = ("nextBeginOffset", "minOffset", "maxOffset")
_OPAQUE: Final = "opaque"
_OPAQUE_NUMBER: Final = r"(0|[1-9]\d{0,9})"  # the form of numbers in JSON
_OFFSET_NUMBER: Final = r"(\d{1,19})"  # Java writes offsets as JSON strings
_BYTES: Final = "latin-1"  # one character for each byte: decoding the header once is cheaper than decoding each number
_OPAQUE_MAX: Final = 2**31 - 1
_MAX_PATTERNS: Final = 4  # limit for one broker; more patterns would cost more than they save


class AlikeHeaders:
    """Decodes the pull responses of one broker."""

    __slots__ = ("_patterns",)

    def __init__(self) -> None:
        self._patterns: list[_Pattern] = []

    def decode(self, payload: bytes) -> RemotingCommand:
        """Decode a frame without its length field, as `decode_command` does. Raises ProtocolError."""
        for pattern in self._patterns:
            if (reply := pattern.decode(payload)) is not None:
                return reply
        command = decode_command(payload)
        if (
            command.code == ResponseCode.SUCCESS
            and len(self._patterns) < _MAX_PATTERNS
            and (found := _pattern_of(command)) is not None
        ):
            self._patterns.append(found)
        return command


class _Pattern:
    """Headers like that of `sample`. The groups of `expression` have the order of `names`."""

    __slots__ = ("_expression", "_fields", "_names", "_opaque_at", "_same")

    def __init__(self, sample: RemotingCommand, expression: re.Pattern[str], names: list[str]) -> None:
        self._same = sample.code, sample.flag, sample.remark, sample.language, sample.version
        self._fields = sample.ext_fields.copy()
        self._expression = expression
        self._opaque_at = names.index(_OPAQUE)
        self._names = [name for name in names if name != _OPAQUE]

    def decode(self, payload: bytes) -> RemotingCommand | None:
        body_start = 4 + int.from_bytes(payload[:4])  # the first byte is the serialize type: 0 for JSON
        found = self._expression.fullmatch(payload[4:body_start].decode(_BYTES))
        if found is None or body_start > len(payload):
            return None
        numbers = [*found.groups()]
        opaque = int(numbers.pop(self._opaque_at))
        if opaque > _OPAQUE_MAX:
            return None
        fields = self._fields.copy()
        fields.update(zip(self._names, numbers, strict=True))
        code, flag, remark, language, version = self._same
        return RemotingCommand(code, opaque, flag, fields, payload, body_start, remark, language, version)


def _pattern_of(command: RemotingCommand) -> _Pattern | None:
    """Return the pattern of a header; None if one of its numbers could be read in two ways."""
    header = command.payload[4 : command.body_start]
    # Without escapes, quotes start and end strings alternately. So a quoted name that occurs once is a member's name.
    if command.payload[0] != SerializeType.JSON or b"\\" in header:
        return None
    members = {name: (f'"{name}":"', command.ext_fields.get(name, "")) for name in _OFFSETS}
    members[_OPAQUE] = (f'"{_OPAQUE}":', str(command.opaque))
    places: list[tuple[int, int, str]] = []
    for name, (before, number) in members.items():
        start = header.find((before + number).encode()) + len(before)
        # other scripts have digits as well, with several bytes each
        is_number = number.isascii() and number.isdecimal()
        if start < len(before) or not is_number or header.count(f'"{name}"'.encode()) != 1:
            return None
        places.append((start, start + len(number), name))
    places.sort()
    written, end = [], 0
    for start, until, name in places:
        same = re.escape(header[end:start].decode(_BYTES))
        written += [same, _OPAQUE_NUMBER if name == _OPAQUE else _OFFSET_NUMBER]
        end = until
    expression = "".join([*written, re.escape(header[end:].decode(_BYTES))])
    return _Pattern(command, re.compile(expression, re.ASCII), [name for *_, name in places])
