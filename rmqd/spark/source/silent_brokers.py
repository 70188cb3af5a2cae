"""Brokers that do not answer while others do. A query continues without their queues."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from rmqd.errors import RemotingError, RmqdError
from rmqd.spark.session.queue_queries import QueueResponses
from rmqd.spark.session.spark_cluster import Cluster
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)


class BrokerSilentError(RemotingError):
    """A broker did not return the end offsets of its queues for too long."""


@dataclass(slots=True)
class _Silence:
    since: float
    error: RmqdError
    asking: Future[QueueResponses[int]] | None = None

    def told(self, cluster: Cluster, queues: Collection[MessageQueue]) -> QueueResponses[int]:
        """Return the answers since the last call. Starts a request if none is running."""
        if self.asking is None:
            self.asking = cluster.begin_max_offsets(queues)
        elif self.asking.done():
            answers, self.asking = self.asking.result(), None
            return answers
        return QueueResponses()


class SilentBrokers:
    """The brokers that do not answer, and since when. Logged once when a broker falls silent and when it returns."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._silent: dict[str, _Silence] = {}

    def ends(self, cluster: Cluster, queues: Collection[MessageQueue]) -> QueueResponses[int]:
        """Return the end offsets of the queues.

        Does not wait for brokers that are already silent: their answers are returned by a later call. Their requests
        take seconds to fail, and would delay all other queues.
        """
        answers = cluster.max_offsets([one for one in queues if one.broker_name not in self._silent], of_slaves=True)
        for broker, silence in self._silent.items():
            asked = [queue for queue in queues if queue.broker_name == broker]
            told = silence.told(cluster, asked)
            for queue in asked:  # the response is for an earlier request, which may have had other queues
                if queue in told.found:
                    answers.found[queue] = told.found[queue]
                else:
                    answers.failed[queue] = told.failed.get(queue, silence.error)
        return answers

    def look(self, answers: QueueResponses[int]) -> None:
        """Record the brokers that did not answer. A missing queue does not count as silence."""
        failed: dict[str, list[MessageQueue]] = {}
        for queue in sorted(answers.failed.keys() - answers.away):
            failed.setdefault(queue.broker_name, []).append(queue)
        there = {queue.broker_name for queue in answers.found}
        now = time.monotonic()
        for broker in sorted(self._silent.keys() - failed.keys()):
            silence = self._silent.pop(broker)
            if broker in there:  # a broker that is not in `there` is missing in all routes
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

    def raise_if_silent(self) -> None:
        """Raise BrokerSilentError if a broker has not answered for longer than the tolerance."""
        now = time.monotonic()
        for broker, silence in self._silent.items():
            seconds = now - silence.since
            if seconds >= self._patience_seconds:
                raise BrokerSilentError(
                    broker,
                    f"has not returned the ends of its queues for {seconds:.0f} s while others did: {silence.error}",
                )
