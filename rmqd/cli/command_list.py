"""All commands by name: their functions, and the first sentences of their help.

A command's module is imported when the command is needed. The list of commands needs only this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Listed:
    """A command."""

    place: str
    """The function, as module:function below rmqd.cli."""
    summary: str
    """The first sentence of its help. The constant `help_name` of its module has the rest."""
    help_name: str = "HELP"
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """Commands with a common first word."""

    summary: str
    help: str
    """The help after the summary."""
    commands: Mapping[str, Listed]
    hidden: bool = False


COMMANDS: Final[Mapping[str, Listed | ListedGroup]] = {
    "demo": Listed(
        "demo:demo", "Run a RocketMQ, a producer of orders and a consumer group in this process, and watch them."
    ),
    "run": Listed("run:run", "Run the consumer groups of a configuration until a signal."),
    "check": Listed("check:check", "Check a configuration and its handlers; with --connect also the cluster."),
    "schema": Listed("schema:schema", "Print the JSON Schema of the configuration."),
    "handlers": Listed("handlers:handlers", "List the installed handlers and pipelines, and their options."),
    "new": ListedGroup(
        "Create a project.",
        "Example: rmqd new handler order-book",
        {
            "handler": Listed(
                "new_handler:new_handler",
                "Create a project with a typed handler, its tests and its configuration.",
            ),
        },
    ),
    "test": Listed("test:run_cases", "Run cases written in YAML: messages for a handler, and their expected outcomes."),
    "status": Listed("status:status", "Show the groups and queues of the running daemon, once."),
    "top": Listed(
        "top.command:top",
        "Watch the groups of the running daemon live: rates, lag, age, durations, retries and dead letters.",
    ),
    "lag": Listed("lag:lag", "Show the lag of groups: the number of waiting messages, and the age of the oldest."),
    "diagnose": Listed(
        "diagnose:diagnose",
        "Explain why a group lags or does not consume: the most likely cause first, with evidence and next steps.",
    ),
    "groups": ListedGroup(
        "Show the consumer groups of a cluster, of any client, and set whether they pop or pull.",
        "Example: rmqd groups show order-mailer",
        {
            "list": Listed(
                "groups_list:list_groups",
                "List the groups of a cluster with their members, consumption mode and lag.",
            ),
            "show": Listed(
                "groups_show:show_group",
                "Show one group: its members, subscriptions, the owner of each queue, and its settings on brokers.",
            ),
            "mode": Listed(
                "group_mode:set_mode",
                "Set whether a group pops or pulls a topic, on all brokers of the topic, like mqadmin setConsumeMode.",
            ),
        },
    ),
    "topics": ListedGroup(
        "Show the topics of a cluster.",
        "Example: rmqd topics show orders",
        {
            "list": Listed(
                "topics_list:list_topics", "List the topics of a cluster: their queues, permissions, types and brokers."
            ),
            "show": Listed(
                "topics_show:show_topic",
                "Show one topic: its queues with first and last offsets, the groups that read it, and its settings.",
            ),
        },
    ),
    "offsets": ListedGroup(
        "Show a group's offsets, and reset them.",
        "Example: rmqd offsets show order-mailer orders",
        {
            "show": Listed(
                "offsets_show:show", "Show a group's committed offset in each queue, and the ends of the queue."
            ),
            "reset": Listed("offsets_reset:reset", "Reset a group's offsets in a topic, even while its members run."),
            "restore": Listed(
                "offsets_restore:restore",
                "Reset a group to the offsets in a backup that `rmqd offsets reset` has written.",
            ),
        },
    ),
    "dlq": ListedGroup(
        "Show, replay and purge dead letters: messages that a group could not handle.",
        "Example: rmqd dlq show order-mailer",
        {
            "list": Listed(
                "dlq_list:list_dead_letters",
                "List the groups with dead letters: the number left, the number stored, and the time of the last one.",
            ),
            "show": Listed(
                "dlq_show:show",
                "Show the newest unsettled dead letters of a group, oldest first, with the topic of each.",
            ),
            "replay": Listed(
                "dlq_replay:replay",
                "Replay a group's dead letters: all that are left, or a selection.",
            ),
            "purge": Listed(
                "dlq_purge:purge",
                "Settle a group's dead letters without handling them: all that are left, or a selection.",
            ),
        },
    ),
    "try": Listed("try_group:try_group", "Run a group's handler on real messages, and print the outcome of each."),
    "replay": Listed(
        "replay:replay", "Replay the messages of a time window with a group's handler, without affecting the group."
    ),
    "tail": Listed("tail:tail", "Print the messages of a topic as they arrive, until Ctrl-C."),
    "message": ListedGroup(
        "Show single messages of a cluster.",
        "Example: rmqd message query orders order-4711",
        {
            "get": Listed(
                "message_get:get",
                "Show a message by its id: the producer's id, as in logs, or an offset id of 32 digits.",
            ),
            "query": Listed(
                "message_query:query",
                "Show the messages of a topic with a key, in the order in which they were stored.",
            ),
        },
    ),
    "send": Listed("send:send", "Send a message, once or several times, and print its queue and offset."),
    "pause": Listed(
        "control:pause",
        "Pause a group of the running daemon: it keeps its queues, stops pulling, and finishes its messages.",
        help_name="PAUSE_HELP",
    ),
    "resume": Listed(
        "control:resume",
        "Resume a paused group of the running daemon, or some of its queues.",
        help_name="RESUME_HELP",
    ),
    "concurrency": Listed(
        "control:concurrency",
        "Change the number of batches that a group of the running daemon handles at once.",
        help_name="CONCURRENCY_HELP",
    ),
    "reload": Listed(
        "control:reload",
        "Reload the configuration of the running daemon; an invalid one changes nothing and exits with 78.",
        help_name="RELOAD_HELP",
    ),
    "broker": Listed(
        "broker:broker",
        "Run a RocketMQ (a name server and a broker) in this process, without Java, for development and tests.",
    ),
    "spark": ListedGroup(
        "Run groups with engine: spark without the daemon.",
        "rmqd run runs them with all other groups; these commands run a single group.\n\n"
        "Example: rmqd spark submit orders --master spark://spark-1:7077",
        {
            "run": Listed("spark_run:run", "Run one group with engine: spark here, in the foreground, until a signal."),
            "submit": Listed(
                "spark_submit:submit",
                "Run a group with engine: spark on a cluster: standalone, YARN or Kubernetes, by spark-submit.",
            ),
            "compact": Listed(
                "spark_compact:compact",
                "Compact the small files of a group's Parquet sink into large ones; the group may run meanwhile.",
            ),
            "pack": Listed(
                "spark_pack:pack",
                "Pack rmqd, all plugin distributions and their requirements into an archive for a cluster.",
            ),
        },
    ),
    "_worker": Listed(
        "worker:worker", "Serve the parent process at the other end of an inherited socket.", hidden=True
    ),
}
