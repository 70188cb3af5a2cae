"""Brokers that do not tell where their queues end while others do: a query goes on without those queues."""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from rmqd.errors import RemotingError
from rmqd.spark.answers import Answers

log = structlog.get_logger(__name__)


class BrokerSilentError(RemotingError):
    """A broker has not answered for too long where its queues end."""


@dataclass(slots=True)
class _Silence:
    since: float
    error: str


class SilentBrokers:
    """Since when brokers are silent. Each is logged once, and once more when it answers."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._silent: dict[str, _Silence] = {}

    def look(self, answers: Answers[int]) -> None:
        """Note which brokers did not answer. A queue that does not exist is not counted as silence."""
        failed: dict[str, list[str]] = {}
        for queue in answers.failed.keys() - answers.away:
            failed.setdefault(queue.broker_name, []).append(str(answers.failed[queue]))
        now = time.monotonic()
        for broker in sorted(self._silent.keys() - failed.keys()):
            silence = self._silent.pop(broker)
            log.info("spark.broker_returned", broker=broker, after_seconds=round(now - silence.since, 1))
        for broker, errors in sorted(failed.items()):
            if broker in self._silent:
                self._silent[broker].error = errors[0]
                continue
            self._silent[broker] = _Silence(now, errors[0])
            log.warning(
                "spark.broker_silent",
                broker=broker,
                queues=len(errors),
                error=errors[0],
                patience_seconds=self._patience_seconds,
            )

    def raise_if_too_long(self) -> None:
        """Raise BrokerSilentError if a broker has been silent for longer than the tolerance."""
        now = time.monotonic()
        for broker, silence in self._silent.items():
            seconds = now - silence.since
            if seconds >= self._patience_seconds:
                raise BrokerSilentError(
                    broker, f"has not told for {seconds:.0f} s where its queues end, while others did: {silence.error}"
                )
