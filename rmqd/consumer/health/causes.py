"""The causes of lag and of groups that do not consume, each with its next step.

A daemon distinguishes more causes than `rmqd diagnose`, which reports a pause, for example, as a `stalled_queue`.
`Cause.diagnosed_as` is the name that `rmqd diagnose` uses for a daemon's cause.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rmqd.consumer.consumer_options import MAX_CONCURRENCY
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import (
    FlowControlError,
    InvalidParameterError,
    NoPermissionError,
    SubscriptionGroupNotExistError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    SubscriptionParseError,
    TopicNotExistError,
)
from rmqd.wire.topics import LMQ_PREFIX


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a group or queue: its cause, the evidence, and the operator's next step."""

    cause: str  # a key of CAUSES
    evidence: str
    next: str


class CauseMark(enum.Flag):
    """How a daemon reports a cause."""

    QUEUE = enum.auto()
    """A daemon reports this cause for a single queue."""
    GROUP = enum.auto()
    """A daemon reports this cause for the whole group."""
    STUCK = enum.auto()
    """The state of a queue with this cause is `stuck`. Other causes lead to other states, such as paused."""
    MILD = enum.auto()
    """The queue resumes automatically, so its log line is a warning and not an error."""


QUEUE, GROUP, STUCK, MILD = CauseMark
_ONLY_DIAGNOSED: Final = CauseMark(0)


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of problems. `step` is the next step, with placeholders `{group}`, `{topic}` and `{concurrency}`."""

    name: str
    step: str
    marks: CauseMark = _ONLY_DIAGNOSED
    diagnosed_as: str = ""
    """The cause's name in `rmqd diagnose`; empty if it is the same."""
    explains: str = ""
    """The causes that are consequences of this one, if a diagnosis finds both."""


# The order of `rmqd diagnose`: causes that stop a whole group come first, and causes before their consequences.
_IN_ORDER: Final = (
    Cause(
        "no_route",
        "start the broker, or check its namesrvAddr (`rmqd topics list` shows whether it answers); the group resumes "
        "automatically",
        QUEUE | GROUP | STUCK,
        explains="topic_missing no_members orphaned_queue held_lock stalled_queue idle_member retry_not_accepted",
    ),
    Cause(
        "broker_unreachable",
        "start the broker, or check the network to it (`rmqd topics list` shows whether it answers); the group resumes "
        "automatically, see docs/high-availability.md",
        QUEUE | GROUP | STUCK,
        diagnosed_as="no_route",
    ),
    Cause(
        "topic_missing",
        "if the topic exists, start its broker (`rmqd topics list` lists the topics that answer); otherwise create it, "
        "or remove it from the group's subscriptions",
        QUEUE | GROUP | STUCK,
        explains="no_members orphaned_queue stalled_queue",
    ),
    Cause(
        "group_unknown",
        "create the group: `mqadmin updateSubGroup -c CLUSTER -g {group}`; `rmqd groups list` lists the known groups",
        QUEUE | GROUP | STUCK,
        explains="no_members orphaned_queue stalled_queue",
    ),
    Cause("no_members", "start a member (`rmqd run --group {group}`, or the group's application)"),
    Cause(
        "consumption_disabled",
        "`mqadmin updateSubGroup -c CLUSTER -g {group} -s true` allows the group to consume again, and resets its "
        "other settings: add the settings that `rmqd groups show {group}` lists",
        QUEUE | GROUP | STUCK,
        explains="no_members orphaned_queue stalled_queue",
    ),
    Cause(
        "retries_dropped",
        "`mqadmin updateSubGroup -c CLUSTER -g {group} -q 1` gives the group a retry queue, and resets its other "
        "settings: add the settings that `rmqd groups show {group}` lists",
        GROUP,
    ),
    Cause(
        "no_permission",
        "permit reading the topic (`mqadmin updateTopicPerm -c CLUSTER -t {topic} -p 6`), the broker (its "
        "brokerPermission), or the user",
        QUEUE | GROUP | STUCK,
        explains="no_members orphaned_queue stalled_queue",
    ),
    Cause(
        "client_id_conflict",
        "set a different instance_name for each process: two members with one client id get the same queues; "
        "`rmqd groups show {group}` lists the members",
        GROUP,
        explains="orphaned_queue held_lock stalled_queue idle_member",
    ),
    Cause(
        "mode_mismatch",
        "use another group for one of the applications: all members of a group must consume in the same mode; "
        "`rmqd groups show {group}` lists the members",
        GROUP,
        explains="orphaned_queue held_lock stalled_queue",
    ),
    Cause(
        "subscription_mismatch",
        "give all members the same subscriptions, or use another group for each application; then `rmqd replay {group} "
        "--from 1h` handles all messages of the last hour, also those that were not missed",
        QUEUE | GROUP | STUCK,
        explains="orphaned_queue stalled_queue",
    ),
    Cause(
        "offset_illegal",
        "set a valid offset: `rmqd offsets reset {group} {topic} --to first` handles all stored messages, a second "
        "time if the topic was not recreated; `--to last` skips them",
        QUEUE | GROUP | STUCK,
    ),
    Cause(
        "held_lock",
        "find the owner with `rmqd groups show {group}`; a member that has ended loses its lock after a minute",
        QUEUE | MILD,
        explains="orphaned_queue stalled_queue",
    ),
    Cause(
        "orphaned_queue", "`rmqd groups show {group}` lists the owner of each queue; restart the members without queues"
    ),
    Cause(
        "allocate_failed",
        "give all members the same allocate_strategy with its settings; `rmqd groups show {group}` lists the members",
        GROUP,
        diagnosed_as="orphaned_queue",
    ),
    Cause(
        "poison_message",
        "find the message with `rmqd try {group} --bisect`; fix the handler, or set max_reconsume_times to dead-letter "
        "the message",
        QUEUE | GROUP | MILD,
        explains="failing_handler flow_control slow_handler skewed_queue",
    ),
    Cause(
        "corrupt_message",
        "skip it with `rmqd offsets reset {group} {topic} --skip 1`, or set `on_corrupt_message` and reload",
        QUEUE | STUCK,
        diagnosed_as="poison_message",
    ),
    Cause(
        "circuit_open",
        "check the service that the handler calls: `rmqd status {group}` has the last error, and the log has the "
        "traceback (handler.failed); the group resumes automatically when a test call succeeds",
        QUEUE | GROUP | MILD,
        diagnosed_as="failing_handler",
    ),
    Cause(
        "failing_handler",
        "if a service that the handler calls is unavailable, `rmqd pause {group}` saves attempts. Otherwise the "
        "members' logs have the traceback (handler.failed), and `rmqd try {group}` really runs the handler and "
        "commits nothing. Sent-back messages are retried automatically, dead letters are kept: `rmqd dlq show {group}`",
        QUEUE | GROUP | MILD,
        explains="flow_control slow_handler",
    ),
    Cause(
        "canary_failed",
        "`rmqd canary {group} --stop` gives all messages to the other handler; `rmqd try {group} --canary` really "
        "runs the canary and commits nothing",
        GROUP,
        diagnosed_as="failing_handler",
    ),
    Cause("canary_off", "correct the canary, then run `rmqd restart {group}`", GROUP, diagnosed_as="failing_handler"),
    Cause(
        "broker_read_only",
        "make the broker writable (`mqadmin updateBrokerConfig -c CLUSTER -k brokerPermission -v 6`): until then, "
        "producers do not use it",
        explains="retry_not_accepted",
    ),
    Cause(
        "retry_not_accepted",
        "`rmqd status {group}` has the broker's reason; the send-back is retried every few seconds",
        explains="flow_control slow_handler stalled_queue",
    ),
    Cause(
        "retry_refused",
        "see send_back.failed in the log for the broker's reason, or `rmqd status {group}`; the send-back is retried "
        "every few seconds",
        QUEUE | GROUP,
        diagnosed_as="retry_not_accepted",
    ),
    Cause(
        "skewed_queue",
        "more members or calls do not help a single queue: let the producer choose a finer sharding key, or set "
        "`order_by` (such as keys) and reload; `rmqd lag {group} -o json` shows each queue",
        explains="slow_handler",
    ),
    Cause(
        "flow_control",
        "check the first unfinished message, which holds back the others (`rmqd status {group}`), or raise "
        "pull_threshold_for_queue",
    ),
    Cause("rate_limit", "raise pull_rate_limit, then `rmqd reload`", QUEUE | MILD, diagnosed_as="flow_control"),
    Cause(
        "slow_handler",
        "if calls hang, run `rmqd restart {group}`, and set timeouts inside the handler. If they are only slow, run "
        "`rmqd concurrency {group} {concurrency}` (until the next reload), raise handler.concurrency, or, if the group "
        "has more queues than members, add members",
        QUEUE | MILD,
    ),
    Cause(
        "claim_store_away",
        "start the store of `deduplicate`, or check its disk and the network to it; the group resumes automatically "
        "(`rmqd status {group}`)",
        QUEUE | GROUP | STUCK,
        diagnosed_as="slow_handler",
    ),
    Cause(
        "claimed_elsewhere",
        "wait until the other member has handled the messages, or its leases expire (`rmqd groups show {group}` lists "
        "the members)",
        QUEUE | MILD,
        diagnosed_as="slow_handler",
    ),
    Cause(
        "offsets_not_stored",
        "make room in state_dir (`rmqd check --show` prints its path), or make it writable. Until then, no further "
        "queue starts, and a restart handles the messages of the other queues again",
        GROUP,
        diagnosed_as="offset_illegal",
    ),
    Cause("paused", "resume it with `rmqd resume {group}`", QUEUE, diagnosed_as="stalled_queue"),
    Cause(
        "pull_failed",
        "see the broker's log, and `rmqd status {group}` for the broker's response; the pull is retried every second",
        QUEUE | STUCK,
        diagnosed_as="stalled_queue",
    ),
    Cause(
        "stalled_queue",
        "report this bug with the log around this line and `rmqd status {group} -o json`; the pull loop is restarted "
        "automatically",
        QUEUE | STUCK,
    ),
    Cause("clock_skew", "synchronize both hosts' clocks by NTP (`timedatectl`)"),
    Cause(
        "idle_member",
        "run fewer members, or add queues: a member without a queue only waits; `rmqd groups show {group}` "
        "lists the members",
    ),
)
CAUSES: Final[Mapping[str, Cause]] = {cause.name: cause for cause in _IN_ORDER}
DIAGNOSIS_CAUSES: Final = tuple(cause.name for cause in _IN_ORDER if not cause.diagnosed_as)
"""The causes of `rmqd diagnose`, in its order."""
STALL_CAUSES: Final = tuple(cause.name for cause in _IN_ORDER if QUEUE in cause.marks)
GROUP_CAUSES: Final = tuple(cause.name for cause in _IN_ORDER if GROUP in cause.marks)


_NAME: Final = re.compile(r"\{(group|topic|concurrency)\}")


def make_problem(
    cause: str,
    evidence: str,
    *,
    group: str = "GROUP",
    topic: str = "TOPIC",
    step: str = "",
    slots: int = 20,
    needed: int = 0,
) -> Problem:
    """Return the problem of this cause. A given `step` replaces the cause's next step.

    `slots` is how many calls of the handler may run at once. The step for a slow handler recommends twice as many, or
    `needed` calls if that is more, up to the limit of `rmqd concurrency`.
    """
    names = {"group": group, "topic": topic, "concurrency": str(min(max(2 * slots, needed), MAX_CONCURRENCY))}
    # not str.format, which would fail if a step contains a message id with braces from a producer
    step = _NAME.sub(lambda name: names[name[1]], step or CAUSES[cause].step)
    # texts of brokers end with a period, but output continues with the next step after the evidence
    return Problem(cause, evidence.removesuffix("."), step)


# remark of a broker if the group's consumeEnable is false (Java: PullMessageProcessor)
GROUP_FORBIDDEN_REMARK: Final = "subscription group no permission"


def explain_failure(error: RmqdError, group: str = "GROUP", topic: str = "TOPIC") -> Problem:
    """Return the problem that an error indicates. The next step's commands contain `group` and `topic`."""
    cause, step = _cause(error)
    return make_problem(cause, str(error), group=group, topic=topic, step=step)


def _cause(error: RmqdError) -> tuple[str, str]:
    """Return the cause, and a next step if the error allows a more precise one."""
    match error:
        case NoPermissionError() if GROUP_FORBIDDEN_REMARK in error.remark:
            return "consumption_disabled", ""
        case NoPermissionError():
            return "no_permission", ""
        case SubscriptionNotExistError() | SubscriptionNotLatestError() | SubscriptionParseError():
            return (
                "subscription_mismatch",
                "`rmqd diagnose {group}` compares the members' subscriptions: they must be equal",
            )
        case SubscriptionGroupNotExistError():
            return "group_unknown", ""
        case TopicNotExistError() if LMQ_PREFIX in error.remark:
            step = "set enableLmq=true and enableMultiDispatch=true on the broker: it has no light message queues"
            return "topic_missing", step
        case TopicNotExistError():
            return "topic_missing", ""
        case RouteNotFoundError() | InvalidParameterError():
            return "no_route", ""
        case RemotingError():
            return "broker_unreachable", ""
        case FlowControlError():
            return "pull_failed", "the broker limits requests: check its load and limits"
        case _:
            return "pull_failed", ""
