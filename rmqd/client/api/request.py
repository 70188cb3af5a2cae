"""The common part of all requests: send, wait for the response, turn an error code into an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker_errors import BrokerError
from rmqd.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.command import RemotingCommand
    from rmqd.wire.headers.base import RequestHeader

REQUEST_TIMEOUT_SECONDS = 3.0  # Java: mqClientApiTimeout
ADMIN_TIMEOUT_SECONDS = 5.0  # Java: DefaultMQAdminExt's timeoutMillis
SUCCESS = frozenset({ResponseCode.SUCCESS})


async def request(
    remoting: RemotingClient,
    address: str,
    header: RequestHeader | RequestCode,
    body: bytes = b"",
    *,
    code: RequestCode | None = None,
    extra_fields: Mapping[str, str] | None = None,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    accepted: frozenset[ResponseCode] = SUCCESS,
) -> RemotingCommand:
    """Send a request and return its response. A code that is not in `accepted` raises the BrokerError for that code.

    A request without header fields is given by its code. `code` overrides the header's own code if one header serves
    two requests.
    """
    if isinstance(header, RequestCode):
        code, ext_fields = header, {}
    else:
        code, ext_fields = code or header.code, header.ext_fields()
    if extra_fields:
        ext_fields = {**ext_fields, **extra_fields}
    reply = await remoting.invoke(address, code, ext_fields, body, timeout_seconds)
    if reply.code not in accepted:
        raise BrokerError.of(reply.code, reply.remark, address, code)
    return reply
