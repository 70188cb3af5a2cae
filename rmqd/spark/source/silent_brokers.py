"""Brokers that do not tell where their queues end while others do: a query goes on without those queues."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from rmqd.errors import RemotingError, RmqdError
from rmqd.spark.answers import Answers
from rmqd.spark.cluster import Cluster
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)


class BrokerSilentError(RemotingError):
    """A broker has not answered for too long where its queues end."""


@dataclass(slots=True)
class _Silence:
    since: float
    error: RmqdError
    asking: Future[Answers[int]] | None = None

    def told(self, cluster: Cluster, queues: Collection[MessageQueue]) -> Answers[int]:
        """What the broker has answered since it was asked last. If it is not being asked, it is from now on."""
        if self.asking is None:
            self.asking = cluster.begin_max_offsets(queues)
        elif self.asking.done():
            answers, self.asking = self.asking.result(), None
            return answers
        return Answers()


class SilentBrokers:
    """Since when brokers are silent. Each is logged once, and once more when it answers."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._silent: dict[str, _Silence] = {}

    def ends(self, cluster: Cluster, queues: Collection[MessageQueue]) -> Answers[int]:
        """Where the queues end, as brokers tell.

        No broker that is silent already is waited for: what it answers is taken by a later call. A request to one takes
        seconds to fail, and the queues of all others would rest meanwhile.
        """
        answers = cluster.max_offsets([one for one in queues if one.broker_name not in self._silent], of_slaves=True)
        for broker, silence in self._silent.items():
            asked = [queue for queue in queues if queue.broker_name == broker]
            told = silence.told(cluster, asked)
            for queue in asked:  # which may be others than those that the broker was asked about
                if queue in told.found:
                    answers.found[queue] = told.found[queue]
                else:
                    answers.failed[queue] = told.failed.get(queue, silence.error)
        return answers

    def look(self, answers: Answers[int]) -> None:
        """Note which brokers did not answer. A queue that does not exist is not counted as silence."""
        failed: dict[str, list[MessageQueue]] = {}
        for queue in sorted(answers.failed.keys() - answers.away):
            failed.setdefault(queue.broker_name, []).append(queue)
        there = {queue.broker_name for queue in answers.found}
        now = time.monotonic()
        for broker in sorted(self._silent.keys() - failed.keys()):
            silence = self._silent.pop(broker)
            if broker in there:  # and is not gone from all routes
                log.info("spark.broker_returned", broker=broker, after_seconds=round(now - silence.since, 1))
        for broker, queues in sorted(failed.items()):
            error = answers.failed[queues[0]]
            if broker in self._silent:
                self._silent[broker].error = error
                continue
            self._silent[broker] = _Silence(now, error)
            topics = dict.fromkeys(queue.topic for queue in queues)
            log.warning(
                "spark.broker_silent",
                broker=broker,
                queues={topic: [queue.queue_id for queue in queues if queue.topic == topic] for topic in topics},
                error=str(error),
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
