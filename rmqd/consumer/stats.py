"""Counters of one group, kept where things happen and read by snapshots."""

from __future__ import annotations

from rmqd.consumer.snapshot import FLOW_CONTROL_REASONS, HANDLED_RESULTS, TopicSnapshot
from rmqd.histogram import Histogram

HANDLER_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
AGE_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400)
MOST_EXCEPTION_CLASSES = 50  # label values are bounded; what comes later counts as "other"


class TopicStats:
    """What happened to one topic's messages; `is_retry` for those that come by the group's retry topic."""

    __slots__ = (
        "acked",
        "age",
        "duplicates",
        "duration",
        "exceptions",
        "flow_control",
        "handled",
        "is_retry",
        "received",
        "topic",
    )

    def __init__(self, topic: str, is_retry: bool) -> None:
        self.topic = topic
        self.is_retry = is_retry
        self.received = 0
        self.acked = 0  # beside `handled`, as it is counted for each batch of the hot path
        self.handled = dict.fromkeys(HANDLED_RESULTS, 0)
        self.flow_control = dict.fromkeys(FLOW_CONTROL_REASONS, 0)
        self.duplicates: dict[str, int] = {}
        self.exceptions: dict[str, int] = {}
        self.duration = Histogram(HANDLER_SECONDS)
        self.age = Histogram(AGE_SECONDS)

    def count(self, result: str, messages: int = 1) -> None:
        """`messages` attempts ended with `result`."""
        self.handled[result] += messages

    def may_repeat(self, cause: str, messages: int) -> None:
        """Messages that were handled here will be handled again by somebody, because of `cause`."""
        self.duplicates[cause] = self.duplicates.get(cause, 0) + messages

    def raised(self, error: BaseException) -> None:
        """A handler raised."""
        name = type(error).__name__
        if name not in self.exceptions and len(self.exceptions) >= MOST_EXCEPTION_CLASSES:
            name = "other"
        self.exceptions[name] = self.exceptions.get(name, 0) + 1

    def snapshot(self) -> TopicSnapshot:
        """The counters as plain values."""
        return TopicSnapshot(
            topic=self.topic,
            is_retry=self.is_retry,
            received=self.received,
            handled={**self.handled, "acked": self.acked + self.handled["acked"]},
            flow_control=dict(self.flow_control),
            handler_duration=self.duration.snapshot(),
            message_age=self.age.snapshot(),
            duplicates=dict(self.duplicates),
            exceptions=dict(self.exceptions),
        )
