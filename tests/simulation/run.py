"""Runs a plan. The history has its own random numbers and clocks."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import secrets
from typing import Final

import structlog
from structlog.typing import EventDict, WrappedLogger

from rmqd.runtime import clock as backoff
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop, running_host
from tests.simulation.members.home import use_disks_of_homes
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan


class Crashed(AssertionError):
    """The history did not reach its end."""


def simulate(plan: Plan, *, tells: bool = False) -> Outcome:
    """Run a plan; with `tells`, the timeline has all that members log, otherwise their warnings only.

    Raises Crashed with the last lines.
    """
    random.seed(plan.seed)
    backoff.JITTER_RANDOM.seed(plan.seed)
    secrets.token_hex, secrets.randbits = _token_hex, _randbits
    use_disks_of_homes()
    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    history = History(plan, loop)
    former = structlog.get_config()
    least = logging.INFO if tells else logging.WARNING
    structlog.configure(processors=[_Teller(history)], wrapper_class=structlog.make_filtering_bound_logger(least))
    gc.disable()  # a history takes half a second
    try:
        return loop.run_until_complete(history.run())
    except Exception as error:
        last = "\n".join(history.timeline.lines()[-30:])
        raise Crashed(f"seed {plan.seed} ({plan.kind})\n{last}") from error
    finally:
        loop.end()
        history.close()
        gc.enable()
        structlog.configure(**former)


def _token_hex(nbytes: int | None = None) -> str:
    """Return a token drawn from the seed instead of the system."""
    return random.randbytes(nbytes or 32).hex()


def _randbits(k: int) -> int:
    """Return bits drawn from the seed instead of the system."""
    return random.getrandbits(k)


_UNTOLD: Final = ("event", "exc_info", "msg_id", "size_bytes")
"""Message ids contain the process id, and message sizes depend on earlier histories."""


class _Teller:
    """Adds the log events of members to the timeline."""

    def __init__(self, history: History) -> None:
        self._timeline = history.timeline

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        host = running_host()
        values = " ".join(f"{name}={value}" for name, value in event.items() if name not in _UNTOLD)
        self._timeline.tell("" if host is None else host.name, f"{event['event']} {values}")
        raise structlog.DropEvent
