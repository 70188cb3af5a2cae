"""Commits a query's place as a consumer group's offsets on the brokers.

The checkpoint owns the query's place. It is committed to the brokers for `mqadmin consumerProgress`, and for the next
owner of the group. The query may commit only while the group is its own:

- An offset never goes back. If the broker's offset is beyond the query's place, it stays until the query has passed it:
  another consumer has handled the messages between, or an operator moved the group there, and a lower commit would have
  them handled again. The exception is a queue that was created anew, whose old offset may be beyond its end.
- While consumers are connected in the group, nothing is committed. They start from the group's offsets when queues
  change owners, and would skip messages that the query has read, and they have not.
- A queue that is in no route, or without a master, is left out, and committed once it is there again. Others go on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.errors import RmqdError
from rmqd.spark.answers import those_there
from rmqd.spark.cluster import Cluster, cluster_of
from rmqd.spark.source.retry_topics import RetryTopics
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.spark.source.options import SourceOptions

log = structlog.get_logger(__name__)

MEMBERS_SECONDS: Final = 10.0  # between two looks at who is connected in the group
AWAY_SECONDS: Final = 10.0  # before a queue that was away is asked about again; Spark polls 90 times a second
TELL_SECONDS: Final = 60.0  # between two warnings of one kind
SHARED: Final = "if another query or consumer has this groupId: one of its own for each, or commitOffsets=false"


class GroupOffsets:
    """Commits what a query has done. Without a group, or with commitOffsets=false, it does nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._told: dict[MessageQueue, int] = {}  # the places about which nothing is to be told to brokers
        self._stored: dict[MessageQueue, int] = {}  # the brokers' offsets, as they were found or made last
        self._away_until: dict[MessageQueue, float] = {}
        self._retry_topics = RetryTopics(options.group)
        self._failing = False
        self._warned_at: dict[str, float] = {}
        self._looked_at_members: float | None = None
        self._in_use = False
        self._has_told_that = False  # nothing is committed

    def pin(self, starts: Mapping[MessageQueue, int]) -> None:
        """Commit where the query starts, in queues for which the group has no offset. Raises RmqdError."""
        if not self._options.commit_offsets:
            return
        cluster = cluster_of(self._options.access)
        known = those_there(cluster.committed(self._options.group, starts))
        missing = {queue: starts[queue] for queue, offset in known.items() if offset is None}
        those_there(cluster.commit(self._options.group, missing))

    def commit(self, positions: Mapping[MessageQueue, int]) -> None:
        """Commit what is new in `positions`. Raises nothing: what was not taken is committed the next time."""
        if not self._options.commit_offsets:
            self._tell_once_that_nothing_is_committed()
            return
        now = time.monotonic()
        changed = {
            queue: offset
            for queue, offset in positions.items()
            if self._told.get(queue) != offset and self._away_until.get(queue, 0.0) <= now
        }
        try:
            if changed and not self._is_in_use(changed):
                self._commit(changed)
            self._failing = False
        except RmqdError as error:
            if not self._failing:
                log.warning("spark.not_committed", group=self._options.group, error=str(error))
            self._failing = True

    def _commit(self, changed: Mapping[MessageQueue, int]) -> None:
        """Commit in each queue whose broker answers. Raises the error of another one, afterwards."""
        cluster, group = cluster_of(self._options.access), self._options.group
        asked = cluster.committed(group, changed)
        due = self._due(cluster, asked.found, changed)
        answers = cluster.commit(group, due)
        taken = {queue: due[queue] for queue in answers.found}
        self._told |= taken
        self._stored |= taken
        self._away_until |= dict.fromkeys(asked.away | answers.away, time.monotonic() + AWAY_SECONDS)
        self._show(cluster, asked.found)
        for error in (*asked.failures, *answers.failures):
            raise error

    def _show(self, cluster: Cluster, queues: Collection[MessageQueue]) -> None:
        """Have `mqadmin consumerProgress` find the brokers that have the group's offsets."""
        self._retry_topics.ensure(cluster, queues)

    def _due(
        self, cluster: Cluster, found: Mapping[MessageQueue, int | None], changed: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """What is to be committed, where brokers have `found`; where nothing is to be, that is noted."""
        due, ahead = {}, {}
        others = {queue: at for queue, at in found.items() if at is not None and at != self._stored.get(queue, at)}
        stored = {queue: self._stored[queue] for queue in others}
        for queue, at in found.items():
            if at is not None:
                self._stored[queue] = at
            if at is None or at < changed[queue]:
                due[queue] = changed[queue]
            else:
                self._told[queue] = changed[queue]
            if at is not None and at > changed[queue]:
                ahead[queue] = at
        ends = cluster.max_offsets(ahead).found if ahead else {}
        made_anew = {queue: changed[queue] for queue, at in ahead.items() if at > ends.get(queue, at)}
        ahead = {queue: at for queue, at in ahead.items() if queue not in made_anew}
        if self._is_due("ahead", ahead):
            place = _by_name({queue: changed[queue] for queue in ahead})
            log.warning("spark.checkpoint_overtaken", **self._facts(ahead), query=place, follows="the checkpoint")
        if self._is_due("moved", others):
            log.warning("spark.group_moved_by_others", **self._facts(others), stored=_by_name(stored), action=SHARED)
        return due | made_anew

    def _is_in_use(self, queues: Mapping[MessageQueue, int]) -> bool:
        """Whether consumers are connected in the group: the query is none of them. Raises RmqdError."""
        now = time.monotonic()
        if self._looked_at_members is None or now - self._looked_at_members >= MEMBERS_SECONDS:
            members = cluster_of(self._options.access).members(self._options.group, queues)
            self._looked_at_members, self._in_use = now, bool(members)
            if members:
                action = "nothing is committed"
                log.warning("spark.group_in_use", group=self._options.group, members=sorted(members), action=action)
        return self._in_use

    def _tell_once_that_nothing_is_committed(self) -> None:
        """Log it if `commitOffsets` was not set: the group shows a lag though the query has read everything."""
        if self._options.group and "commitOffsets" not in self._options.given and not self._has_told_that:
            self._has_told_that = True
            log.info("spark.commits_disabled", group=self._options.group, accepted="commitOffsets=true")

    def _is_due(self, what: str, committed: Mapping[MessageQueue, int]) -> bool:
        """Whether to warn of these offsets: there are some, and the last warning of the kind is long enough ago."""
        now = time.monotonic()
        if not committed or now - self._warned_at.get(what, -TELL_SECONDS) < TELL_SECONDS:
            return False
        self._warned_at[what] = now
        return True

    def _facts(self, committed: Mapping[MessageQueue, int]) -> dict[str, object]:
        return {"group": self._options.group, "committed": _by_name(committed)}


def _by_name(offsets: Mapping[MessageQueue, int]) -> dict[str, int]:
    """Offsets by the queues' names, in order."""
    return {str(queue): offsets[queue] for queue in sorted(offsets)}
