"""For `rmqd check --connect`: checks whether brokers let a POP group pop its topics, without changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from rmqd.broker_errors import RequestCodeNotSupportedError
from rmqd.client.api.pop import query_assignment
from rmqd.client.api.request_mode import request_modes
from rmqd.diagnosis.members import pulling_problem
from rmqd.errors import RemotingError, RmqdError
from rmqd.wire.bodies.pop import MessageRequestMode, QueryAssignmentRequestBody

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance

Finding = tuple[Literal["ok", "warning", "error", "unreachable"], str, str]
"""The severity, the topic, and the message."""


async def pop_findings(
    client: ClientInstance, address: str, where: str, group: str, topics: Iterable[str]
) -> list[Finding]:
    """Check each topic at one broker. `where` is the broker's name in messages."""
    return [await _finding(client, address, where, group, topic) for topic in topics]


async def _finding(client: ClientInstance, address: str, where: str, group: str, topic: str) -> Finding:
    try:
        mode = await _mode(client, address, group, topic)
    except RequestCodeNotSupportedError:
        return "error", topic, f"{where} does not support POP; use RocketMQ 5, or consume_mode: concurrently"
    except RmqdError as error:
        told = f"{where} does not return the group's mode: {error}"
        return "unreachable" if isinstance(error, RemotingError) else "error", topic, told
    if mode is MessageRequestMode.POP:
        return "ok", topic, f"{where} lets the group pop"
    problem = pulling_problem(group, topic, where, "the configuration")
    return "warning", topic, f"{problem.evidence}; {problem.next}"


async def _mode(client: ClientInstance, address: str, group: str, topic: str) -> MessageRequestMode:
    """Return the mode that the broker assigns to members; without members, the mode that an administrator set."""
    body = QueryAssignmentRequestBody(topic, group, client.client_id)
    told = await query_assignment(client.remoting, address, body)
    if told:
        return told[0].mode
    was_set = (await request_modes(client.remoting, address)).get((topic, group))
    return MessageRequestMode.PULL if was_set is None else MessageRequestMode(was_set.mode)
