"""Headers of pulls, and templates that encode pull requests quickly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple, Self

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError
from rmqd.wire.acl import Credentials, signed_content
from rmqd.wire.bodies.heartbeat_data import EXPRESSION_TAG
from rmqd.wire.command import LANGUAGE, VERSION
from rmqd.wire.headers.request_header import RequestHeader

PULL_RESPONSE_CODES: Final = frozenset(
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
# fields whose values differ from pull to pull, sorted by name, as the signature requires
_CHANGING: Final = ("commitOffset", "maxMsgNums", "queueOffset", "subVersion", "suspendTimeoutMillis", "sysFlag")


class PullMessageRequestHeader(RequestHeader, code=RequestCode.PULL_MESSAGE):
    """Asks for messages of one queue from `queue_offset` on. The bits of `sys_flag` are in PullSysFlag."""

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


class PullMessageResponseHeader(NamedTuple):
    """The offset of the next pull, and the queue's ends. It is a tuple, because thousands are created each second."""

    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0
    topic_sys_flag: int = 0
    group_sys_flag: int = 0
    offset_delta: int = 0  # in a static topic, add this number to the offsets in the records

    @classmethod
    def from_ext_fields(cls, ext_fields: Mapping[str, str]) -> Self:
        """Read the header of a pull response whose code is in `PULL_RESPONSE_CODES`. Raises ProtocolError."""
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
            raise ProtocolError(f"the response to a pull has a missing or invalid offset: {error!r:.200}") from error
        if not 0 <= header[0] <= _LONG_MAX:
            raise ProtocolError(f"the response to a pull has the next offset {header[0]}; expected 0 to {_LONG_MAX}")
        return header

    def ext_fields(self) -> dict[str, str]:
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
    """A template for the pull requests of one queue. The parts that never change are encoded once."""

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
        """`subscription` is for PullSysFlag.SUBSCRIPTION. Requests get `extra_fields`, and `credentials` sign them."""
        fixed = {
            **(extra_fields or {}),
            **(credentials.signing_fields() if credentials is not None else {}),
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
        header = self._format % (opaque, queue_offset, commit_offset, sys_flag, sub_version, suspend_ms, max_msg_nums)
        if self._credentials is not None:
            changing = (commit_offset, max_msg_nums, queue_offset, sub_version, suspend_ms, sys_flag)
            header = b'%s%s"}}' % (header, self._credentials.sign(self._content % changing))
        size = len(header)
        return _PREFIX.pack(size + 4, size) + header
