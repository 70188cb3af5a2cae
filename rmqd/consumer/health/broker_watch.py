"""Detects brokers of a group that are down, and reports whether a slave serves their queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.loop import PullLoop
from rmqd.diagnosis.causes import Problem, found
from rmqd.wire.message_queue import MessageQueue

DOWN_SECONDS: Final = 4.0  # a shorter failure is only a lost connection


class BrokerWatch:
    """Watches the brokers of one group. A broker that is down is a problem of the group until it responds again."""

    def __init__(self, context: GroupContext, assigned: Mapping[MessageQueue, Assignment]) -> None:
        self._context = context
        self._assigned = assigned
        self._since: dict[str, float] = {}  # broker name -> monotonic time

    def look(self) -> None:
        """Check every broker of this member's pulled queues once."""
        now = self._context.clock.monotonic()
        pulled = (queue for queue, one in self._assigned.items() if not one.is_popped)
        held = self._context.client.routes.by_endpoint(pulled)
        for name in self._since.keys() - held.keys():
            del self._since[name]
            self._context.problems.end(("broker", name))
        for name, queues in held.items():
            reason = self._why_down(name)
            if reason is None:
                self._since.pop(name, None)
                self._context.problems.end(("broker", name))
            elif now - self._since.setdefault(name, now) >= DOWN_SECONDS:
                problem = _problem(name, reason, [self._assigned[queue] for queue in queues])
                self._context.problems.begin(("broker", name), problem)

    def _why_down(self, name: str) -> str | None:
        """Return why a broker's master is down; None if it is not, as far as is known."""
        client = self._context.client
        master = client.routes.master(name)
        if master is None:
            return f"no route names a master of broker {name}"
        reason = client.remoting.why_down(master)
        return None if reason is None else f"the master of broker {name} ({master}) does not answer: {reason}"


def _problem(name: str, reason: str, queues: list[Assignment]) -> Problem:
    slaves = {
        loop.request.address
        for assigned in queues
        if isinstance(loop := assigned.loop, PullLoop) and not loop.request.at_master and loop.failure is None
    }
    slave = next(iter(slaves), None)
    fate = f"are read from its slave {slave}" if slave is not None else "wait for it"
    return found("broker_unreachable", f"{reason}; {len(queues)} queues of {name} here {fate}")
