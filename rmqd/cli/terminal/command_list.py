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
        "broker_commands:demo",
        "Run a RocketMQ, a producer of orders and a consumer group in this process, and watch them.",
        help_name="DEMO_HELP",
    ),
    "run": Listed(
        "daemon_commands:run", "Run the consumer groups of a configuration until a signal.", help_name="RUN_HELP"
    ),
    "check": Listed(
        "check_command:check",
        "Check a configuration and its handlers; with --connect also the cluster.",
        help_name="CHECK_HELP",
    ),
    "schema": Listed("check_command:schema", "Print the JSON Schema of the configuration.", help_name="SCHEMA_HELP"),
    "handlers": Listed(
        "handler_commands:handlers",
        "List the installed handlers and pipelines, and their options.",
        help_name="HANDLERS_HELP",
    ),
    "new": ListedGroup(
        "Create a project.",
        "Example: rmqd new handler order-book",
        {
            "handler": Listed(
                "handler_commands:new_handler",
                "Create a project with a typed handler, its tests and its configuration.",
                help_name="NEW_HANDLER_HELP",
            ),
        },
    ),
    "test": Listed(
        "test_command:run_cases",
        "Run cases written in YAML: messages for a handler, and their expected outcomes.",
        help_name="TEST_HELP",
    ),
    "status": Listed(
        "daemon_commands:status", "Show the groups and queues of the running daemon, once.", help_name="STATUS_HELP"
    ),
    "top": Listed(
        "top.top_command:top",
        "Watch the groups of the running daemon live: rates, lag, age, durations, retries and dead letters.",
        help_name="TOP_HELP",
    ),
    "lag": Listed(
        "group_commands:lag",
        "Show the lag of groups: the number of waiting messages, and the age of the oldest.",
        help_name="LAG_HELP",
    ),
    "diagnose": Listed(
        "diagnose_command:diagnose",
        "Explain why a group lags or does not consume: the most likely cause first, with evidence and next steps.",
    ),
    "groups": ListedGroup(
        "Show the consumer groups of a cluster, of any client, and set whether they pop or pull.",
        "Example: rmqd groups show order-mailer",
        {
            "list": Listed(
                "group_commands:list_groups",
                "List the groups of a cluster with their members, consumption mode and lag.",
                help_name="GROUPS_LIST_HELP",
            ),
            "show": Listed(
                "group_commands:show_group",
                "Show one group: its members, subscriptions, the owner of each queue, and its settings on brokers.",
                help_name="GROUPS_SHOW_HELP",
            ),
            "mode": Listed(
                "group_commands:set_mode",
                "Set whether a group pops or pulls a topic, on all brokers of the topic, like mqadmin setConsumeMode.",
                help_name="GROUP_MODE_HELP",
            ),
        },
    ),
    "topics": ListedGroup(
        "Show the topics of a cluster.",
        "Example: rmqd topics show orders",
        {
            "list": Listed(
                "topic_commands:list_topics",
                "List the topics of a cluster: their queues, permissions, types and brokers.",
                help_name="TOPICS_LIST_HELP",
            ),
            "show": Listed(
                "topic_commands:show_topic",
                "Show one topic: its queues with first and last offsets, the groups that read it, and its settings.",
                help_name="TOPICS_SHOW_HELP",
            ),
        },
    ),
    "offsets": ListedGroup(
        "Show a group's offsets, and reset them.",
        "Example: rmqd offsets show order-mailer orders",
        {
            "show": Listed(
                "offset_commands:show",
                "Show a group's committed offset in each queue, and the ends of the queue.",
                help_name="OFFSETS_SHOW_HELP",
            ),
            "reset": Listed(
                "offset_commands:reset",
                "Reset a group's offsets in a topic, even while its members run.",
                help_name="OFFSETS_RESET_HELP",
            ),
            "restore": Listed(
                "offset_commands:restore",
                "Reset a group to the offsets in a backup that `rmqd offsets reset` has written.",
                help_name="OFFSETS_RESTORE_HELP",
            ),
        },
    ),
    "dlq": ListedGroup(
        "Show, replay and purge dead letters: messages that a group could not handle.",
        "Example: rmqd dlq show order-mailer",
        {
            "list": Listed(
                "dlq:list_dead_letters",
                "List the groups with dead letters: the number left, the number stored, and the time of the last one.",
                help_name="DLQ_LIST_HELP",
            ),
            "show": Listed(
                "dlq:show",
                "Show the newest unsettled dead letters of a group, oldest first, with the topic of each.",
                help_name="DLQ_SHOW_HELP",
            ),
            "replay": Listed(
                "dlq_changes:replay",
                "Replay a group's dead letters: all that are left, or a selection.",
                help_name="DLQ_REPLAY_HELP",
            ),
            "purge": Listed(
                "dlq_changes:purge",
                "Settle a group's dead letters without handling them: all that are left, or a selection.",
                help_name="DLQ_PURGE_HELP",
            ),
        },
    ),
    "try": Listed(
        "try_command:try_group",
        "Run a group's handler on real messages, and print the outcome of each.",
        help_name="TRY_GROUP_HELP",
    ),
    "replay": Listed(
        "replay_command:replay",
        "Replay the messages of a time window with a group's handler, without affecting the group.",
        help_name="REPLAY_HELP",
    ),
    "tail": Listed(
        "message_commands:tail", "Print the messages of a topic as they arrive, until Ctrl-C.", help_name="TAIL_HELP"
    ),
    "message": ListedGroup(
        "Show single messages of a cluster.",
        "Example: rmqd message query orders order-4711",
        {
            "get": Listed(
                "message_commands:get",
                "Show a message by its id: the producer's id, as in logs, or an offset id of 32 digits.",
                help_name="MESSAGE_GET_HELP",
            ),
            "query": Listed(
                "message_commands:query",
                "Show the messages of a topic with a key, in the order in which they were stored.",
                help_name="MESSAGE_QUERY_HELP",
            ),
        },
    ),
    "send": Listed(
        "send_command:send",
        "Send a message, once or several times, and print its queue and offset.",
        help_name="SEND_HELP",
    ),
    "pause": Listed(
        "daemon_commands:pause",
        "Pause a group of the running daemon: it keeps its queues, stops pulling, and finishes its messages.",
        help_name="PAUSE_HELP",
    ),
    "resume": Listed(
        "daemon_commands:resume",
        "Resume a paused group of the running daemon, or some of its queues.",
        help_name="RESUME_HELP",
    ),
    "concurrency": Listed(
        "daemon_commands:concurrency",
        "Change the number of batches that a group of the running daemon handles at once.",
        help_name="CONCURRENCY_HELP",
    ),
    "reload": Listed(
        "daemon_commands:reload",
        "Reload the configuration of the running daemon; an invalid one changes nothing and exits with 78.",
        help_name="RELOAD_HELP",
    ),
    "broker": Listed(
        "broker_commands:broker",
        "Run a RocketMQ (a name server and a broker) in this process, without Java, for development and tests.",
        help_name="BROKER_HELP",
    ),
    "spark": ListedGroup(
        "Run groups with engine: spark without the daemon.",
        "rmqd run runs them with all other groups; these commands run a single group.\n\n"
        "Example: rmqd spark submit orders --master spark://spark-1:7077",
        {
            "run": Listed(
                "spark_commands:run",
                "Run one group with engine: spark here, in the foreground, until a signal.",
                help_name="SPARK_RUN_HELP",
            ),
            "submit": Listed(
                "spark_commands:submit",
                "Run a group with engine: spark on a cluster: standalone, YARN or Kubernetes, by spark-submit.",
                help_name="SPARK_SUBMIT_HELP",
            ),
            "compact": Listed(
                "spark_commands:compact",
                "Compact the small files of a group's Parquet sink into large ones; the group may run meanwhile.",
                help_name="SPARK_COMPACT_HELP",
            ),
            "pack": Listed(
                "spark_commands:pack",
                "Pack rmqd, all plugin distributions and their requirements into an archive for a cluster.",
                help_name="SPARK_PACK_HELP",
            ),
        },
    ),
    "_worker": Listed(
        "daemon_commands:worker",
        "Serve the parent process at the other end of an inherited socket.",
        help_name="WORKER_HELP",
        hidden=True,
    ),
}
