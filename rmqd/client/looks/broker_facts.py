"""The broker data of a diagnosis: whether brokers answer, store messages, and have the right time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rmqd.client.api.admin import broker_config, broker_runtime_info
from rmqd.diagnosis.facts import BrokerFacts
from rmqd.errors import RemotingError
from rmqd.wire.bodies.route import MASTER_ID

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Answers, Brokers
    from rmqd.clock import Clock
    from rmqd.wire.bodies.cluster import ClusterInfo

_RUNTIME: Final = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_MOST_DISK: Final = 0.90  # the maximum in Java: CleanCommitLogService limits diskSpaceWarningLevelRatio


async def broker_facts(brokers: Brokers, info: ClusterInfo, clock: Clock) -> dict[str, BrokerFacts]:
    """Return facts on all brokers by name. Refused facts are unknown; a broker without any response is silent."""

    async def figures(address: str) -> tuple[float, Mapping[str, str]]:
        asked_at = clock.wall()
        told = await broker_runtime_info(brokers.client.remoting, address)
        return (asked_at + clock.wall()) / 2, told

    settings, runtime = await asyncio.gather(
        brokers.ask(lambda address: broker_config(brokers.client.remoting, address)), brokers.ask(figures)
    )
    return {
        name: _facts(name, dict(sorted(broker.broker_addrs.items())), settings, runtime)
        for name, broker in sorted(info.broker_addr_table.items())
    }


def _facts(
    name: str,
    replicas: Mapping[int, str],
    settings: Answers[dict[str, str]],
    runtime: Answers[tuple[float, Mapping[str, str]]],
) -> BrokerFacts:
    values = settings.by_broker.get(name, {})
    at, figures = runtime.by_broker.get(name, (0.0, {}))
    silences = [error for error in (settings.errors.get(name), runtime.errors.get(name)) if error is not None]
    is_silent = len(silences) == 2 and all(isinstance(error, RemotingError) for error in silences)
    return BrokerFacts(
        name=name,
        master=replicas.get(MASTER_ID),
        slaves=tuple(address for number, address in replicas.items() if number != MASTER_ID),
        silence=str(silences[0]) if is_silent else None,
        permission=int(told) if (told := values.get("brokerPermission", "")).isdecimal() else None,
        **_disk(values, figures),
        clock_ahead_seconds=_clock_ahead(at, figures),
        makes_groups=values.get("autoCreateSubscriptionGroup", "true") == "true",
    )


def _disk(settings: Mapping[str, str], figures: Mapping[str, str]) -> dict[str, float]:
    """Return the used share of the disk and its limit; empty if the broker does not report both."""
    limit, used = settings.get("diskSpaceWarningLevelRatio", ""), figures.get("commitLogDiskRatio", "")
    if not limit.isdecimal():  # the embedded broker stores in memory
        return {}
    try:
        return {"disk_used": float(used), "disk_limit": min(int(limit) / 100, _MOST_DISK)}
    except ValueError:
        return {}


def _clock_ahead(at: float, figures: Mapping[str, str]) -> float | None:
    """Return by how much a broker's clock is ahead, from its start time and its runtime in whole seconds."""
    begun, runs = figures.get("bootTimestamp", ""), _RUNTIME.fullmatch(figures.get("runtime", ""))
    if not begun.isdecimal() or runs is None:
        return None
    days, hours, minutes, seconds = map(int, runs.groups())
    running_seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + 0.5
    return int(begun) / 1000 + running_seconds - at
