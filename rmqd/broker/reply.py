"""The results of processors: a reply, a refusal (an exception), or None if the response follows later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from rmqd.codes import ResponseCode
from rmqd.errors import RmqdError

SEE_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""The last part of many remarks of the real servers."""

NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})

NO_CODE: Final = "not set any response code"  # the remark of some successful responses, whose code Java forgets to set


class Reply(NamedTuple):
    """The response to a request."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext_fields: Mapping[str, str] = NO_FIELDS
    body: bytes = b""


class Refusal(RmqdError):
    """Raised by a processor to answer with an error code. `remark` is the real broker's text."""

    def __init__(self, code: ResponseCode, remark: str, ext_fields: Mapping[str, str] = NO_FIELDS) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields


@contextlib.contextmanager
def refusing_with(ext_fields: Mapping[str, str]) -> Iterator[None]:
    """Add ext fields to every Refusal in the block, because Java responds with unset header numbers."""
    try:
        yield
    except Refusal as refusal:
        raise Refusal(refusal.code, refusal.remark, ext_fields) from None
