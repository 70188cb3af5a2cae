"""Reads and sets whether groups pull or pop their topics on a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.client.api.request import ADMIN_TIMEOUT_SECONDS, request
from rmqd.codes import RequestCode
from rmqd.wire.bodies.settings import request_modes_from_json

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.bodies.settings import SetMessageRequestModeRequestBody


async def request_modes(
    remoting: RemotingClient, address: str
) -> dict[tuple[str, str], SetMessageRequestModeRequestBody]:
    """Return the settings of `mqadmin setConsumeMode` on one broker, by topic and group."""
    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
    reply = await request(remoting, address, code, timeout_seconds=ADMIN_TIMEOUT_SECONDS)
    return request_modes_from_json(reply.body)


async def set_request_mode(remoting: RemotingClient, address: str, mode: SetMessageRequestModeRequestBody) -> None:
    """Set whether a group pulls or pops a topic on one broker, like `mqadmin setConsumeMode`."""
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    await request(remoting, address, code, mode.to_json(), timeout_seconds=ADMIN_TIMEOUT_SECONDS)
