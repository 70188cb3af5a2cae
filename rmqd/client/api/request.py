"""The way every request takes: send, wait, turn an error code into an exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import BrokerError, ProtocolError

if TYPE_CHECKING:
    from rmqd.client.remoting import RemotingClient
    from rmqd.wire.command import RemotingCommand

REQUEST_TIMEOUT_SECONDS = 3.0  # Java: mqClientApiTimeout
ADMIN_TIMEOUT_SECONDS = 5.0  # Java: DefaultMQAdminExt's timeoutMillis


async def request(
    remoting: RemotingClient,
    address: str,
    code: RequestCode,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    accepted: frozenset[int] = frozenset((ResponseCode.SUCCESS,)),
) -> RemotingCommand:
    """Send a request and return its reply; a code that is not in `accepted` raises the BrokerError of that code."""
    reply = await remoting.invoke(address, code, dict(ext_fields or {}), body, timeout_seconds)
    if reply.code not in accepted:
        raise BrokerError.of(reply.code, reply.remark, address)
    return reply


def ext_field(reply: RemotingCommand, name: str) -> str:
    """A field that the reply must have. Raises ProtocolError if it is missing."""
    try:
        return reply.ext_fields[name]
    except KeyError:
        raise ProtocolError(f"the reply lacks the field {name!r}: {dict(reply.ext_fields)}") from None


def integer_ext_field(reply: RemotingCommand, name: str) -> int:
    """A field that the reply must have as a whole number. Raises ProtocolError if it is not."""
    text = ext_field(reply, name)
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(f"the reply's field {name!r} is not a whole number: {text!r}") from None
