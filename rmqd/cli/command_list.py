"""All commands by their names: where each is, and the first sentence of its help.

A command's module is imported when the command is needed: the list of all is shown by this module alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Listed:
    """A command."""

    place: str
    """Its function, as module:function below rmqd.cli."""
    summary: str
    """The first sentence of its help; what follows is the constant `help_name` of its module."""
    help_name: str = "HELP"
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """Commands that have a word in common."""

    summary: str
    help: str
    """What follows the summary."""
    commands: Mapping[str, Listed]
    hidden: bool = False


COMMANDS: Final[Mapping[str, Listed | ListedGroup]] = {
    "demo": Listed(
        "demo:demo", "Run a RocketMQ, a producer of orders and a consumer group in this process, and watch them."
    ),
    "run": Listed("run:run", "Run the consumer groups of a configuration until a signal."),
    "check": Listed(
        "check:check", "Check a configuration and its handlers; nothing is connected to unless --connect says so."
    ),
    "schema": Listed("schema:schema", "Print the JSON Schema of the configuration."),
    "handlers": Listed("handlers:handlers", "List the installed handlers and pipelines, and their options."),
    "new": ListedGroup(
        "Write the beginning of something: a handler's project.",
        "Example: rmqd new handler order-book",
        {
            "handler": Listed(
                "new_handler:new_handler",
                "Write a project with a typed handler, its tests and its configuration, to begin with.",
            ),
        },
    ),
    "test": Listed(
        "test:run_cases", "Run cases written in YAML: messages for a handler, and what is to become of them."
    ),
    "status": Listed("status:status", "Show the groups and queues of the running daemon, once."),
    "top": Listed(
        "top.command:top",
        "Watch the groups of the running daemon, live: rates, lag, age, the handler's durations, retries, dead "
        "letters.",
    ),
    "lag": Listed("lag:lag", "Show how far groups are behind: messages that wait, and the age of the oldest of them."),
    "diagnose": Listed(
        "diagnose:diagnose",
        "Say why a group lags or does not consume: the likeliest cause first, with the evidence and what to type next.",
    ),
    "groups": ListedGroup(
        "Look at the consumer groups of a cluster, of any client, and set whether they pop or pull.",
        "Example: rmqd groups show order-mailer",
        {
            "list": Listed(
                "groups_list:list_groups",
                "List the groups of a cluster: their members, how they consume, and how far they are behind.",
            ),
            "show": Listed(
                "groups_show:show_group",
                "Show one group: its members, what they subscribe to, who owns which queue, and its settings on each "
                "broker.",
            ),
            "mode": Listed(
                "group_mode:set_mode",
                "Set whether a group pops or pulls a topic, on all brokers of the topic, as mqadmin setConsumeMode "
                "does.",
            ),
        },
    ),
    "topics": ListedGroup(
        "Look at the topics of a cluster.",
        "Example: rmqd topics show orders",
        {
            "list": Listed(
                "topics_list:list_topics", "List the topics of a cluster: their queues, permissions, types and brokers."
            ),
            "show": Listed(
                "topics_show:show_topic",
                "Show one topic: its queues with the offsets at their ends, the groups that read it, and its settings.",
            ),
        },
    ),
    "offsets": ListedGroup(
        "Look at a group's offsets, and move them.",
        "Example: rmqd offsets show order-mailer orders",
        {
            "show": Listed(
                "offsets_show:show", "Show a group's committed offset in each queue, and the ends of the queue."
            ),
            "reset": Listed("offsets_reset:reset", "Move a group's offsets in a topic, while its members run or not."),
            "restore": Listed(
                "offsets_restore:restore",
                "Move a group back to the offsets in a backup that `rmqd offsets reset` has written.",
            ),
        },
    ),
    "dlq": ListedGroup(
        "Look at dead letters, messages that a group has given up, and have them handled again or settle them.",
        "Example: rmqd dlq show order-mailer",
        {
            "list": Listed(
                "dlq_list:list_dead_letters",
                "List the groups that have dead letters: how many are left, how many the brokers hold, when the last "
                "one came.",
            ),
            "show": Listed(
                "dlq_show:show",
                "Show the newest dead letters of a group that are left, the oldest first, with the topic that each "
                "came from.",
            ),
            "replay": Listed(
                "dlq_replay:replay",
                "Have a group handle its dead letters again: all that are left, or those that the options choose.",
            ),
            "purge": Listed(
                "dlq_purge:purge",
                "Settle a group's dead letters that are not to be handled again: all that are left, or those chosen by "
                "options.",
            ),
        },
    ),
    "try": Listed(
        "try_group:try_group", "Run a group's handler over real messages, and tell for each what would become of it."
    ),
    "replay": Listed(
        "replay:replay", "Handle again what was stored within a time, with a group's handler, beside the group."
    ),
    "tail": Listed("tail:tail", "Print the messages of a topic as they come, until Ctrl-C."),
    "message": ListedGroup(
        "Look at single messages of a cluster.",
        "Example: rmqd message query orders order-4711",
        {
            "get": Listed(
                "message_get:get",
                "Show a message by its id: the one that its producer gave it, as logs show, or an offset id of 32 "
                "digits.",
            ),
            "query": Listed(
                "message_query:query",
                "Show the messages of a topic that have a key, in the order in which they were stored.",
            ),
        },
    ),
    "send": Listed("send:send", "Send a message, or the same one several times, and print where the broker stored it."),
    "pause": Listed(
        "control:pause",
        "Pause a group of the running daemon: it keeps its queues, pulls no more, finishes what it has.",
        help_name="PAUSE_HELP",
    ),
    "resume": Listed(
        "control:resume",
        "Let a paused group of the running daemon, or the queues that are named, go on.",
        help_name="RESUME_HELP",
    ),
    "concurrency": Listed(
        "control:concurrency",
        "Change how many batches a group of the running daemon handles at once.",
        help_name="CONCURRENCY_HELP",
    ),
    "reload": Listed(
        "control:reload",
        "Have the running daemon read its configuration again; a bad one changes nothing and exits with 78.",
        help_name="RELOAD_HELP",
    ),
    "broker": Listed(
        "broker:broker",
        "Run a RocketMQ (a name server and a broker) in this process, without Java, for development and for tests.",
    ),
    "spark": ListedGroup(
        "Run groups with engine: spark without the daemon.",
        "Under rmqd run they run beside all others; these commands are for one group by itself.\n\n"
        "Example: rmqd spark submit orders --master spark://spark-1:7077",
        {
            "run": Listed("spark_run:run", "Run one group with engine: spark here, in the foreground, until a signal."),
            "submit": Listed(
                "spark_submit:submit",
                "Run a group with engine: spark on a cluster: standalone, YARN or Kubernetes, by spark-submit.",
            ),
            "compact": Listed(
                "spark_compact:compact",
                "Make large files of the small ones that a group's Parquet sink has written, while it runs or not.",
            ),
            "pack": Listed(
                "spark_pack:pack",
                "Pack rmqd, all distributions with plugins and what they need into an archive for a cluster.",
            ),
        },
    ),
    "_worker": Listed(
        "worker:worker", "Serve the parent process at the other end of an inherited socket.", hidden=True
    ),
}
