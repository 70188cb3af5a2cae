"""Each cause for which a group lags or does not consume: its name, its next step, and what else is known of it.

A daemon tells causes in finer names than `rmqd diagnose` does: a pause, for example, is a `stalled_queue` for who asks
the brokers alone. `Cause.diagnosed_as` joins the two lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Problem:
    """One cause, how it shows, and what to do about it."""

    cause: str  # of CAUSES
    evidence: str
    next: str


@dataclass(frozen=True, slots=True)
class Cause:
    """What is known of a cause. `step` is the next step; `{group}` and `{topic}` in it are filled by `found`."""

    name: str
    step: str
    of_queue: bool = False
    """Whether a daemon tells it of a single queue."""
    of_group: bool = False
    """Whether a daemon tells it of the group as a whole."""
    stuck: bool = False
    """Whether a queue's state is then shown as stuck; the others show by another state, such as paused."""
    mild: bool = False
    """Whether the queue goes on by itself before long, so that its log line is a warning."""
    diagnosed_as: str = ""
    """The name that `rmqd diagnose` gives it; empty: its own."""


# The order is that of `rmqd diagnose`: what keeps a whole group from consuming comes first, and what others of the list
# bring about comes after them.
_IN_ORDER: Final = (
    Cause(
        "no_route",
        "is the broker up, and does it register with these name servers? It goes on by itself once it is back",
        of_queue=True,
        of_group=True,
        stuck=True,
    ),
    Cause(
        "broker_unreachable",
        "is the broker up, and reachable from here? It goes on by itself, see docs/high-availability.md",
        of_queue=True,
        of_group=True,
        stuck=True,
        diagnosed_as="no_route",
    ),
    Cause(
        "topic_missing",
        "create the topic, or take it out of the group's subscriptions; `rmqd topics list` has all that there are",
        of_queue=True,
        of_group=True,
        stuck=True,
    ),
    Cause("no_members", "start a member (`rmqd run --group {group}`, or the group's own application)"),
    Cause(
        "consumption_disabled",
        "`mqadmin updateSubGroup -g {group} -s true` lets the group consume again",
        of_queue=True,
        of_group=True,
        stuck=True,
    ),
    Cause(
        "no_permission",
        "let it be read: the topic (`mqadmin updateTopicPerm -t {topic} -p 6`), the broker (its brokerPermission), or "
        "the user",
        of_queue=True,
        of_group=True,
        stuck=True,
    ),
    Cause(
        "client_id_conflict",
        "two members with one client id take the same queues: give each process its own instance_name",
        of_group=True,
    ),
    Cause(
        "mode_mismatch",
        "all members of a group must consume in one mode: give one of the applications a group of its own",
        of_group=True,
    ),
    Cause(
        "subscription_mismatch",
        "all members of a group must subscribe alike, or messages are missed: make them equal, or give each "
        "application a group of its own",
        of_queue=True,
        of_group=True,
        stuck=True,
    ),
    Cause(
        "offset_illegal",
        "`rmqd offsets reset {group} {topic} --to last` (or `--to first`) sets a right one",
        of_queue=True,
        of_group=True,
        stuck=True,
    ),
    Cause(
        "held_lock",
        "a member that is gone loses it after a minute; else `rmqd groups show {group}` says who has which queue",
        of_queue=True,
        mild=True,
    ),
    Cause(
        "orphaned_queue",
        "`rmqd groups show {group}` says who has which queue; restart the members that lack theirs",
    ),
    Cause(
        "allocate_failed",
        "give all members the same allocate_strategy, with what it needs; docs/configuration.md",
        of_group=True,
        diagnosed_as="orphaned_queue",
    ),
    Cause(
        "poison_message",
        "`rmqd try {group} --bisect` finds what the handler dies of; mend it, or have max_reconsume_times give it up",
        of_queue=True,
    ),
    Cause(
        "corrupt_message",
        "`rmqd offsets reset {group} {topic} --skip 1` passes it, or another `on_corrupt_message` and reload",
        of_queue=True,
        stuck=True,
        diagnosed_as="poison_message",
    ),
    Cause(
        "circuit_open",
        "see to what the handler calls, which the error names; the group goes on by itself when a probe succeeds",
        of_queue=True,
        of_group=True,
        mild=True,
        diagnosed_as="failing_handler",
    ),
    Cause(
        "failing_handler",
        "the members' logs have the traceback (handler.failed); `rmqd try {group}` runs the handler and commits "
        "nothing. What was sent back comes again by itself, what was given up waits: `rmqd dlq show {group}`",
        of_queue=True,
        of_group=True,
        mild=True,
    ),
    Cause(
        "broker_read_only",
        "until it takes messages again, nothing can be retried or dead-lettered there",
    ),
    Cause(
        "retry_refused",
        "send_back.failed in the log has the broker's reason; it is tried again every few seconds",
        of_queue=True,
        of_group=True,
        diagnosed_as="broker_read_only",
    ),
    Cause(
        "flow_control",
        "the first unfinished message holds the rest back: see to it, or raise pull_threshold_for_queue",
    ),
    Cause("rate_limit", "raise pull_rate_limit and reload", of_queue=True, mild=True, diagnosed_as="flow_control"),
    Cause(
        "slow_handler",
        "give what the handler calls a timeout; more concurrency, or more members where queues are left, help",
        of_queue=True,
        mild=True,
    ),
    Cause(
        "claim_store_away",
        "is the store of `deduplicate` up, and reachable from here? It goes on by itself once it is back",
        of_queue=True,
        of_group=True,
        stuck=True,
        diagnosed_as="slow_handler",
    ),
    Cause(
        "claimed_elsewhere",
        "it goes on by itself when the other member is done, or its claims have ended; docs/deduplication.md",
        of_queue=True,
        mild=True,
        diagnosed_as="slow_handler",
    ),
    Cause("paused", "`rmqd resume {group}` lets it go on", of_queue=True, diagnosed_as="stalled_queue"),
    Cause(
        "pull_failed",
        "the broker's log says more; it is tried again every second",
        of_queue=True,
        stuck=True,
        diagnosed_as="stalled_queue",
    ),
    Cause(
        "stalled_queue",
        "its pull loop is started anew by itself; please report it with the log around this line",
        of_queue=True,
        stuck=True,
    ),
    Cause("clock_skew", "set both clocks by NTP (`timedatectl`)"),
    Cause("idle_member", "members beyond the number of queues only wait: fewer of them, or more queues"),
)
CAUSES: Final[Mapping[str, Cause]] = {cause.name: cause for cause in _IN_ORDER}
DIAGNOSED: Final = tuple(cause.name for cause in _IN_ORDER if not cause.diagnosed_as)
"""What `rmqd diagnose` tells, in its order."""
STALL_CAUSES: Final = tuple(cause.name for cause in _IN_ORDER if cause.of_queue)
GROUP_CAUSES: Final = tuple(cause.name for cause in _IN_ORDER if cause.of_group)


def found(cause: str, evidence: str, *, group: str = "GROUP", topic: str = "TOPIC", step: str = "") -> Problem:
    """The problem of this cause; `step` replaces the cause's own next step where more is known."""
    return Problem(cause, evidence, (step or CAUSES[cause].step).format(group=group, topic=topic))
