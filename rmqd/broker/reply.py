"""The answers of processors: a reply, a refusal (an exception), or None if the answer comes later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from rmqd.codes import ResponseCode
from rmqd.errors import RmqdError

SEE_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""The end of many remarks of the real servers."""

NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})

NO_CODE: Final = "not set any response code"  # the remark of some successful replies, which Java forgets to set


class Reply(NamedTuple):
    """The answer to a request."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext_fields: Mapping[str, str] = NO_FIELDS
    body: bytes = b""


class Refusal(RmqdError):
    """Raised by a processor that answers with an error code; `remark` is what the real broker says."""

    def __init__(self, code: ResponseCode, remark: str, ext_fields: Mapping[str, str] = NO_FIELDS) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields


@contextlib.contextmanager
def refusing_with(ext_fields: Mapping[str, str]) -> Iterator[None]:
    """Add these ext fields to every Refusal in the block, as Java replies with header numbers that were not set."""
    try:
        yield
    except Refusal as refusal:
        raise Refusal(refusal.code, refusal.remark, ext_fields) from None
